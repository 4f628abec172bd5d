//! Texts of parameters that stand between tags, and how many tags there may be.

use serde_json::{json, Value};

use super::compile::TagProbes;
use super::structural;
use super::tests::{bytes_vocabulary, of_kind, refusal, takes, LIMITS};
use super::Kind;

#[test]
fn properties_stand_in_tags_where_a_structure_says_so() {
    let tag = json!({"at_least_one": true, "max_tags": 1, "structures": [{
        "begin": "<function=f>\n", "end": "</function>", "content": "qwen_xml", "schema": {
            "type": "object", "required": ["city", "n"], "properties": {
                "city": {"type": "string"}, "unit": {"type": "string", "enum": ["c", "f"]},
                "n": {"$ref": "#/$defs/n"}, "o": {"type": "object",
                    "additionalProperties": {"type": "boolean"}}},
            "$defs": {"n": {"type": "integer"}}}}]});
    let grammar = of_kind(Kind::StructuralTag, &tag.to_string());
    let parameter = |key: &str, value: &str| format!("<parameter={key}>\n{value}\n</parameter>\n");
    let of = |parts: &[String]| format!("<function=f>\n{}</function>", parts.concat());
    let (city, n) = (parameter("city", "a \"b\" <c>\n{"), parameter("n", "-7"));
    for text in [
        of(&[city.clone(), n.clone()]),
        of(&[city.clone(), parameter("unit", "f"), n.clone()]),
        of(&[parameter("city", ""), n.clone(), parameter("o", "{\"k\": true}")]),
    ] {
        assert!(takes(&grammar, &text), "{text}");
    }
    for text in [
        of(&[]),
        of(&[n.clone(), city.clone()]),
        of(&[city.clone(), parameter("n", "x")]),
        of(&[city.clone(), parameter("unit", "k"), n.clone()]),
        of(&[city.clone(), n.clone(), parameter("z", "1")]),
    ] {
        assert!(!takes(&grammar, &text), "{text}");
    }
    let none = json!({"at_least_one": true, "max_tags": 1, "structures": [{"begin": "<f>",
        "end": "</f>", "content": "qwen_xml", "schema": {"type": "object"}}]});
    assert!(takes(&of_kind(Kind::StructuralTag, &none.to_string()), "<f></f>"));
}

#[test]
fn texts_in_tags_have_their_lengths() {
    let grammar_of = |text: Value| {
        let tag = json!({"at_least_one": true, "max_tags": 1, "structures": [{
            "begin": "<f>", "end": "</f>", "content": "qwen_xml", "schema": {"type": "object",
                "required": ["s"], "properties": {"s": text, "n": {"type": "integer"}}}}]});
        of_kind(Kind::StructuralTag, &tag.to_string())
    };
    let of = |text: &str| format!("<f><parameter=s>\n{text}\n</parameter>\n</f>");
    let long = "x".repeat(2000);
    let long = long.as_str();
    for (schema, good, bad) in [
        (
            json!({"type": "string", "minLength": 2, "maxLength": 3}),
            vec!["ab", "abc", "\u{e9}\u{e8}\u{ea}", "a\n", "<p>"],
            vec!["", "a", "abcd", long],
        ),
        (json!({"type": "string", "maxLength": 2}), vec!["", "a", "ab"], vec!["abc", "\n\n\n"]),
        (json!({"type": "string", "minLength": 2}), vec!["ab", long], vec!["", "a"]),
        (json!({"type": "string", "maxLength": 100_000}), vec!["", long], vec![]),
    ] {
        let grammar = grammar_of(schema.clone());
        for text in good {
            assert!(takes(&grammar, &of(text)), "{schema} {text:?}");
        }
        for text in bad {
            assert!(!takes(&grammar, &of(text)), "{schema} {text:?}");
        }
    }
    let ended = of("a</parameter>b");
    assert!(!takes(&grammar_of(json!({"type": "string"})), &ended), "its tag ends a text");
    let grammar = grammar_of(json!({"type": "string", "minLength": 30}));
    let short = "a\n</parameter>\n<parameter=n>\n1";
    assert!(!takes(&grammar, &of(short)), "what follows a text that is too short is no part of it");
}

/// A plain text stands as it is, and so does null beside one. Any other value that may be a text
/// is JSON, because a reader could not tell the text 5 from the number.
#[test]
fn parameters_that_may_be_more_than_a_text_are_json() {
    let text = json!({"type": "string", "maxLength": 2});
    let nil = json!({"type": "null", "title": "None"});
    for (schema, good, bad) in [
        (json!({"anyOf": [text, nil], "default": null}), vec!["ab", "null", "\"\""], vec!["abc"]),
        (json!({"oneOf": [nil, text]}), vec!["a", "null"], vec!["abc"]),
        (json!({"type": ["null", "string"], "maxLength": 1}), vec!["a", "null"], vec!["ab"]),
        (json!({"type": ["string", "null"]}), vec!["", "null", "\"a\"\n"], vec![]),
        (
            json!({"anyOf": [{"type": "string", "enum": ["a", "b"]}, nil]}),
            vec!["a", "null"],
            vec!["c", "\"a\"", ""],
        ),
        (json!({"type": "string", "pattern": "^a+$"}), vec!["\"aa\""], vec!["aa", "\"b\""]),
        (json!({"type": "string", "format": "date"}), vec!["\"2024-02-01\""], vec!["2024-02-01"]),
        (json!({"type": ["string", "integer"]}), vec!["\"a\"", "5"], vec!["a"]),
        (json!({"anyOf": [text, {"type": "integer"}]}), vec!["\"a\"", "5"], vec!["a", "\"abc\""]),
        (json!({"anyOf": [text, nil, {"type": "boolean"}]}), vec!["\"a\"", "null"], vec!["a"]),
        (json!({"anyOf": [text, nil], "maxLength": 1}), vec!["\"a\"", "null"], vec!["\"ab\""]),
        (json!({"type": "string", "enum": ["a", 1]}), vec!["\"a\""], vec!["a", "1"]),
        (
            json!({"type": "string", "enum": ["</parameter>", "a"]}),
            vec!["\"</parameter>\"", "\"a\""],
            vec!["a", "</parameter>"],
        ),
        (
            json!({"type": "string", "enum": ["a", "bc"], "minLength": 2}),
            vec!["\"bc\""],
            vec!["a", "bc", "\"a\""],
        ),
        (
            json!({"type": "string", "enum": ["a", "b"], "const": "b"}),
            vec!["\"b\""],
            vec!["a", "b", "\"a\""],
        ),
        (json!({"enum": ["a", null]}), vec!["\"a\"", "null"], vec!["a"]),
        (json!({"$ref": "#/$defs/t"}), vec!["\"a\""], vec!["a", "\"abc\""]),
    ] {
        let tag = json!({"at_least_one": true, "max_tags": 1, "structures": [{
            "begin": "<f>", "end": "</f>", "content": "qwen_xml", "schema": {"type": "object",
                "required": ["s"], "properties": {"s": schema, "no": false},
                "$defs": {"t": text}}}]});
        let grammar = of_kind(Kind::StructuralTag, &tag.to_string());
        let of = |value: &str| format!("<f><parameter=s>\n{value}\n</parameter>\n</f>");
        good.iter().for_each(|value| assert!(takes(&grammar, &of(value)), "{schema}: {value}"));
        bad.iter().for_each(|value| assert!(!takes(&grammar, &of(value)), "{schema}: {value}"));
    }
}

/// No call can have such a property, and an object without it would be one of the schema. In tags
/// it is refused, by its place.
#[test]
fn a_property_that_nothing_satisfies_is_named() {
    let impossible = json!({"allOf": [{"const": 1}, {"type": "string"}]});
    let tag = json!({"at_least_one": true, "max_tags": 1, "structures": [{
        "begin": "<f>", "end": "</f>", "content": "qwen_xml", "schema": {"type": "object",
            "properties": {"a": {"type": "integer"}, "b": impossible}}}]});
    let message = refusal(Kind::StructuralTag, &tag.to_string()).message;
    assert!(message.starts_with("#/structures/0/schema/properties/b: Unsatisfiable"), "{message}");
}

#[test]
fn free_text_holds_none_of_the_excluded_texts() {
    let tag = json!({"triggers": ["<c>"], "excludes": ["<f="], "structures": [
        {"begin": "<c><f=a>", "end": "</c>", "schema": {"type": "integer"}}]});
    let grammar = of_kind(Kind::StructuralTag, &tag.to_string());
    for text in ["", "a <f", "t <c><f=a>1</c> t"] {
        assert!(takes(&grammar, text), "{text}");
    }
    for text in ["<f=b>", "t <f=a>1</c>", "<c><f=a>1</c> <f="] {
        assert!(!takes(&grammar, text), "{text}");
    }
}

#[test]
fn a_tag_has_as_many_structures_as_a_request_has_tools() {
    let structures: Vec<Value> = (0..1024)
        .map(|i| json!({"begin": format!("<c>f{i} "), "end": "</c>", "schema": {"const": i}}))
        .collect();
    let tag = json!({"at_least_one": true, "max_tags": 1, "structures": structures});
    let grammar = of_kind(Kind::StructuralTag, &tag.to_string());
    assert!(takes(&grammar, "<c>f1023 1023</c>"));
    assert!(!takes(&grammar, "<c>f1023 1022</c>"));
}

#[test]
fn the_first_bad_schema_of_many_is_found_with_few_compilations() {
    let impossible = json!({"type": "object", "required": ["a"],
        "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 4}}});
    let tag_of = |bad: &[usize]| {
        let structures: Vec<Value> = (0..1024)
            .map(|i| {
                let schema =
                    if bad.contains(&i) { impossible.clone() } else { json!({"const": i}) };
                json!({"begin": format!("<c>f{i} "), "end": "</c>", "schema": schema})
            })
            .collect();
        json!({"at_least_one": true, "max_tags": 1, "structures": structures}).to_string()
    };
    let vocabulary = bytes_vocabulary();
    for bad in [&[0, 1][..], &[511], &[700, 900], &[1023], &[]] {
        let made = structural::compile(&tag_of(bad), &LIMITS).unwrap_or_else(|f| panic!("{f:?}"));
        let mut probes = TagProbes::new(&vocabulary);
        let num_before = probes.num_left;
        let found = probes.first_failure(&made.schemas).map(|failure| failure.message);
        let num_probes = num_before - probes.num_left;
        assert!(num_probes <= 11, "{bad:?}: {num_probes}");
        assert_eq!(found.is_some(), !bad.is_empty(), "{bad:?}");
        if let (Some(message), [first, ..]) = (found, bad) {
            let place = format!("#/structures/{first}/schema/properties/a: Unsatisfiable");
            assert!(message.starts_with(&place), "{bad:?}: {message}");
            assert_eq!(refusal(Kind::StructuralTag, &tag_of(bad)).message, message, "{bad:?}");
        }
    }
}
