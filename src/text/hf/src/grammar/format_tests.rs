//! Structural tags as trees of formats.

use serde_json::{json, Value};

use super::tests::{of_kind, refusal, takes};
use super::Kind;

fn tag_of(format: &Value) -> String {
    json!({"type": "structural_tag", "format": format}).to_string()
}

fn check(format: &Value, good: &[&str], bad: &[&str]) {
    let grammar = of_kind(Kind::StructuralTag, &tag_of(format));
    good.iter().for_each(|text| assert!(takes(&grammar, text), "{format}: {text:?}"));
    bad.iter().for_each(|text| assert!(!takes(&grammar, text), "{format}: {text:?}"));
}

fn text(value: &str) -> Value {
    json!({"type": "const_string", "value": value})
}

fn number() -> Value {
    json!({"type": "json_schema", "json_schema": {"type": "integer"}})
}

fn any() -> Value {
    json!({"type": "any_text"})
}

fn tag(begin: &str, content: Value, end: &str) -> Value {
    json!({"type": "tag", "begin": begin, "content": content, "end": end})
}

#[test]
fn formats_stand_alone_in_a_row_and_beside_each_other() {
    check(&text("a \"b\"\n"), &["a \"b\"\n"], &["", "a"]);
    check(&number(), &["-3"], &["x", ""]);
    check(&any(), &["", "any\ntext <a>"], &[]);
    check(&json!({"type": "any_text", "excludes": ["<f", "]]"]}), &["", "a<]"], &["a<f", "]]"]);
    check(&json!({"type": "regex", "pattern": "[a-c]+/"}), &["ab/"], &["", "d/", "ab/c"]);
    let row = json!({"type": "sequence", "elements": [text("n="), number(), text(";"), any()]});
    check(&row, &["n=1;", "n=1;x\n"], &["n=1", "1;", "n=x;"]);
    let one = json!({"type": "or", "elements": [text("yes"), number(), tag("<", any(), ">")]});
    check(&one, &["yes", "7", "<>", "<a\nb>"], &["", "no", "<a", "<a>b>"]);
    let nested = json!({"type": "sequence", "elements": [one, row]});
    check(&nested, &["yesn=1;", "<a>n=2;t"], &["yes", "n=1;"]);
    let before = json!({"type": "sequence", "elements": [
        {"type": "regex", "pattern": "[0-9]+"}, text(" apples")]});
    check(&before, &["12 apples"], &["apples", "12", "1a apples"]);
}

#[test]
fn a_tag_ends_where_its_end_comes_first() {
    check(&tag("<t>", any(), "</t>"), &["<t></t>", "<t>a</t</t>"], &["<t>a", "<t></t></t>"]);
    let word = json!({"type": "regex", "pattern": "[a-z]*"});
    check(&tag("<t>", word, "end"), &["<t>end", "<t>abend"], &["<t>", "<t>1end", "<t>endend"]);
    let ends = json!({"type": "tag", "begin": "<t>", "content": any(), "end": ["</t>", "!"]});
    check(&ends, &["<t>a</t>", "<t>a!"], &["<t>a!b!", "<t>a"]);
    check(&tag("<t>", number(), ""), &["<t>5"], &["<t>", "5"]);
    let inner = tag("<a>", tag("<b>", any(), "</b>"), "</a>");
    check(&inner, &["<a><b>x</a></b></a>"], &["<a><b>x</b>", "<a></a>"]);
    let either = tag("<a>", json!({"type": "or", "elements": [any(), number()]}), "</a>");
    check(&either, &["<a>text</a>", "<a>5</a>"], &["<a>5"]);
}

#[test]
fn repetitions_are_counted() {
    let of = |kind: &str| json!({"type": kind, "content": text("ab")});
    check(&of("optional"), &["", "ab"], &["abab", "a"]);
    check(&of("star"), &["", "ab", "ababab"], &["aba"]);
    check(&of("plus"), &["ab", "abab"], &["", "a"]);
    let times = |min: i64, max: i64| {
        let repeat = json!({"type": "repeat", "content": text("ab"), "min": min, "max": max});
        tag("<", repeat, ">")
    };
    check(&times(1, 2), &["<ab>", "<abab>"], &["<>", "<ababab>"]);
    check(&times(2, -1), &["<abab>", "<abababab>"], &["<ab>"]);
    check(&times(0, 0), &["<>"], &["<ab>"]);
}

#[test]
fn tags_in_free_text_begin_with_their_triggers() {
    let triggered = |more: Value| {
        let mut format = json!({"type": "triggered_tags", "triggers": ["<f=", "[x"], "tags": [
            {"begin": "<f=a>", "content": number(), "end": "</f>"},
            tag("<f=b>", any(), "</f>"), tag("[x", number(), "]")]});
        format.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        format
    };
    check(
        &triggered(json!({})),
        &["", "text", "t <f=a>1</f> t <f=b>x</f>[x2] t"],
        &["<f=c>", "t <f=a>x</f>", "<f=a>1", "[x"],
    );
    check(
        &triggered(json!({"at_least_one": true})),
        &["<f=a>1</f>", "[x2] text <f=b></f>"],
        &["", "text", "t <f=a>1</f>"],
    );
    check(
        &triggered(json!({"stop_after_first": true})),
        &["", "text", "t <f=a>1</f>"],
        &["<f=a>1</f> t", "<f=a>1</f>[x2]"],
    );
    let first_alone = json!({"at_least_one": true, "stop_after_first": true});
    check(&triggered(first_alone), &["<f=a>1</f>"], &["", "t<f=a>1</f>", "<f=a>1</f>t"]);
    check(&triggered(json!({"excludes": ["no"]})), &["n[x1]o"], &["no", "[x1]no", "no[x1]"]);
    let within = json!({"type": "sequence", "elements": [
        tag("<r>", triggered(json!({})), "</r>"), text("!")]});
    check(
        &within,
        &["<r></r>!", "<r>a<f=a>1</f>b[x2]</r>!"],
        &["<r>a<f=a>1</f>!", "<r><f=a></r>!", "<r></r>", "<r></r></r>!"],
    );
}

#[test]
fn tags_with_a_separator_stand_alone() {
    let list = |more: Value| {
        let mut format = json!({"type": "tags_with_separator", "separator": ", ", "tags": [
            tag("<a>", number(), "</a>"), tag("<b>", any(), "</b>")]});
        format.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        format
    };
    check(&list(json!({})), &["", "<a>1</a>", "<a>1</a>, <b></b>, <a>2</a>"], &["<a>1</a>,", "x"]);
    check(&list(json!({"at_least_one": true})), &["<b></b>"], &[""]);
    let one = json!({"at_least_one": true, "stop_after_first": true});
    check(&list(one), &["<a>1</a>"], &["", "<a>1</a>, <b></b>"]);
    check(&list(json!({"separator": ""})), &["<a>1</a><b></b>"], &["<a>1</a>, <b></b>"]);
}

#[test]
fn parameters_may_stand_in_tags_of_their_own() {
    let schema = json!({"type": "object", "properties": {"s": {"type": "string"},
        "n": {"type": "integer"}}, "required": ["s"]});
    for format in [
        json!({"type": "qwen_xml_parameter", "json_schema": schema}),
        json!({"type": "json_schema", "json_schema": schema, "style": "qwen_xml"}),
    ] {
        check(
            &tag("<function=f>", format, "</function>"),
            &["<function=f><parameter=s>\na \"b\"\n</parameter>\n</function>"],
            &["<function=f></function>", "<function=f>{\"s\":\"a\"}</function>"],
        );
    }
}

#[test]
fn what_has_no_counterpart_is_refused_by_its_place() {
    let call = |schema: Value| json!({"type": "qwen_xml_parameter", "json_schema": schema});
    let inside = |format: Value| json!({"type": "sequence", "elements": [text("a"), format]});
    let open = |format: Value| json!({"type": "sequence", "elements": [format, number()]});
    for (format, part) in [
        (json!(1), "#/format: must be an object"),
        (json!({}), "#/format/type: must be a text"),
        (json!({"type": "token", "token": 5}), "#/format/type: is not supported; it must be any_"),
        (inside(json!({"type": "dispatch"})), "#/format/elements/1/type: is not supported"),
        (inside(json!({"type": "grammar", "grammar": "a"})), "#/format/elements/1/type: "),
        (json!({"type": "const_string"}), "#/format/value: must be a text"),
        (json!({"type": "const_string", "value": "a", "x": 1}), "#/format/x: is not supported"),
        (json!({"type": "sequence", "elements": []}), "#/format/elements: must be a list"),
        (json!({"type": "or"}), "#/format/elements: must be a list"),
        (json!({"type": "any_text", "max_tokens": 5}), "#/format/max_tokens: is not supported"),
        (json!({"type": "any_text", "excludes": [""]}), "#/format/excludes/0: must be a text"),
        (json!({"type": "any_text", "excludes": "a"}), "#/format/excludes: must be a list"),
        (json!({"type": "regex", "pattern": "("}), "#/format/pattern: "),
        (json!({"type": "regex", "pattern": "a(?=b)"}), "#/format/pattern: "),
        (json!({"type": "json_schema"}), "#/format/json_schema: is missing"),
        (json!({"type": "json_schema", "json_schema": {}, "style": "glm_xml"}), "#/format/style: "),
        (
            json!({"type": "json_schema", "json_schema": {}, "any_order": true}),
            "#/format/any_order: is not supported",
        ),
        (
            json!({"type": "json_schema", "json_schema": {"type": "x"}}),
            "#/format/json_schema/type: must be one of",
        ),
        (
            inside(json!({"type": "json_schema", "json_schema": false})),
            "#/format/elements/1/json_schema: Unsatisfiable",
        ),
        (call(json!({"anyOf": [{}]})), "#/format/json_schema/anyOf: parameters in tags cannot"),
        (call(json!({"type": "string"})), "#/format/json_schema/type: parameters in tags cannot"),
        (call(json!({"type": ["array", "null"]})), "#/format/json_schema/type: parameters"),
        (call(json!({"required": ["a"]})), "#/format/json_schema/required: parameters"),
        (call(json!({"properties": {"a>": {}}})), "#/format/json_schema/properties/a>: "),
        (open(any()), "#/format/elements/0: may stand before a const_string"),
        (open(json!({"type": "regex", "pattern": "a"})), "#/format/elements/0: may stand"),
        (json!({"type": "star", "content": any()}), "#/format/content: may stand"),
        (json!({"type": "repeat", "content": text("a"), "min": 2, "max": 1}), "#/format/max: "),
        (json!({"type": "repeat", "content": text("a"), "min": 0, "max": 1001}), "#/format/max: "),
        (
            json!({"type": "tag", "begin": {"type": "token", "token": 1}, "content": text("a"),
            "end": "b"}),
            "#/format/begin: must be a text",
        ),
        (
            json!({"type": "tag", "begin": "a", "content": text("a"), "end": ["b", ""]}),
            "#/format/end/1: must be a text",
        ),
        (
            json!({"type": "triggered_tags", "triggers": ["<"], "tags": [tag("a", any(), "b")]}),
            "#/format/tags/0/begin: must begin with one of the triggers",
        ),
        (
            json!({"type": "triggered_tags", "triggers": ["<", "<f"],
            "tags": [tag("<f", any(), "b")]}),
            "#/format/tags/0/begin: ",
        ),
        (
            json!({"type": "triggered_tags", "triggers": ["<", "["],
            "tags": [tag("<f", any(), "b")]}),
            "#/format/triggers/1: begins none",
        ),
        (
            json!({"type": "tags_with_separator", "separator": ",", "tags": [text("a")]}),
            "#/format/tags/0/type: must be \"tag\"",
        ),
    ] {
        let message = refusal(Kind::StructuralTag, &tag_of(&format)).message;
        assert!(message.contains(part), "{format}: {message}");
    }
    let both = json!({"format": any(), "triggers": ["a"]}).to_string();
    assert!(refusal(Kind::StructuralTag, &both).message.contains("#/triggers: is not supported"));
    let ignored =
        tag("<", json!({"type": "json_schema", "json_schema": {"not": {"const": 1}}}), ">");
    let grammar = of_kind(Kind::StructuralTag, &tag_of(&ignored));
    assert_eq!(grammar.ignored, ["#/format/content/json_schema/not"]);
}

#[test]
fn members_of_the_other_form_may_be_null() {
    let tree = json!({"type": "structural_tag", "format": text("a"), "structures": null,
        "triggers": null});
    assert!(takes(&of_kind(Kind::StructuralTag, &tree.to_string()), "a"));
    let list = json!({"type": "structural_tag", "format": null, "triggers": ["<f"],
        "structures": [{"begin": "<f>", "schema": {"type": "integer"}, "end": "</f>"}]});
    assert!(takes(&of_kind(Kind::StructuralTag, &list.to_string()), "<f>1</f>"));
}

#[test]
fn trees_of_formats_are_bounded() {
    let mut deep = text("a");
    for _ in 0..60 {
        deep = json!({"type": "optional", "content": deep});
    }
    check(&deep, &["", "a"], &["aa"]);
    for _ in 0..10 {
        deep = json!({"type": "star", "content": deep});
    }
    let failure = refusal(Kind::StructuralTag, &tag_of(&deep));
    assert_eq!(failure.code, crate::Code::Limit, "{}", failure.message);
    let wide: Vec<Value> = (0..1000).map(number_of).collect();
    let wide = json!({"type": "or", "elements": wide});
    check(&wide, &["999"], &["1000"]);
    let wider: Vec<Value> = (0..5).map(|_| wide.clone()).collect();
    let wider = json!({"type": "or", "elements": wider});
    assert!(refusal(Kind::StructuralTag, &tag_of(&wider)).message.contains("formats"));
}

fn number_of(value: usize) -> Value {
    json!({"type": "json_schema", "json_schema": {"const": value}})
}
