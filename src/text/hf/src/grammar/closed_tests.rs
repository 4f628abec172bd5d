//! Members that an answer may have beside those that its schema declares, and blanks between them.

use serde_json::{json, Value};

use super::compile::{compile, Limits};
use super::tests::{bytes_vocabulary, of_kind, refusal, strict, takes, LIMITS};
use super::Kind;

#[test]
fn a_schema_may_ask_for_no_blanks_at_all() {
    let pair = json!({"type": "object", "properties": {"a": {"type": "array"}, "b": {}},
        "x-guidance": {"whitespace_flexible": false}});
    for kind in [Kind::SchemaStrict, Kind::SchemaLoose] {
        let grammar = of_kind(kind, &pair.to_string());
        assert!(grammar.ignored.is_empty());
        assert!(takes(&grammar, r#"{"a":[1,{"c":2}],"b":3}"#));
        for text in [r#"{"a": []}"#, r#"{"a":[1, 2]}"#, "{\"a\":[]\n}", "{\n\"a\":[]}"] {
            assert!(!takes(&grammar, text), "{text:?}");
        }
    }
}

#[test]
fn a_schema_within_a_lark_grammar_has_bounded_blanks_or_none() {
    let list = json!({"type": "array", "items": {"type": "integer"}});
    let mut closed = list.clone();
    closed["x-guidance"] = json!({"whitespace_flexible": false});
    let grammar_of = |schema: &Value| of_kind(Kind::Lark, &format!("start: \"=\" %json {schema}"));
    for text in ["=[1, 2]", "=[\n1]", "=[\n    1,\n    2\n]"] {
        assert!(takes(&grammar_of(&list), text), "{text:?}");
        assert!(!takes(&grammar_of(&closed), text), "{text:?}");
    }
    assert!(takes(&grammar_of(&closed), "=[1,2]"));
    let far = format!("=[\n{}1]", " ".repeat(41));
    for text in ["=[1 ]", "=[ 1]", "=[1,  2]", "=[1 ,2]", "=[\n\n1]", "=[\t1]", far.as_str()] {
        assert!(!takes(&grammar_of(&list), text), "{text:?}");
    }
}

#[test]
fn the_rest_of_a_lark_grammar_with_a_schema_stays_as_it_is() {
    let both = "start: %json {\n \"const\": \"a\"\n} \",\" b // %json {\nb: %json true \"!\"";
    let both = of_kind(Kind::Lark, both);
    assert!(takes(&both, "\"a\",{\"c\": 1}!") && !takes(&both, "\"a\",{\"c\":  1}!"));
    // Another word of the schema's own stays beside the bounds.
    let own = json!({"type": "array", "x-guidance": {"item_separator": ";"}});
    let own = of_kind(Kind::Lark, &format!("start: %json {own}"));
    assert!(takes(&own, "[1;2]") && !takes(&own, "[1,2]") && !takes(&own, "[1;2 ]"));
    // The lines of later errors are the client's.
    let message = refusal(Kind::Lark, "start: %json {\n\"type\":\n\"null\"} b\nb: c\n").message;
    assert!(message.contains("4("), "{message}");
}

#[test]
fn an_object_has_its_declared_properties_alone() {
    let point = json!({"type": "object", "properties": {"x": {}}});
    // The value of "v", one with a member that the schema does not declare.
    for (schema, good, bad) in [
        (point.clone(), r#"{"x":1}"#, r#"{"x":1,"y":2}"#),
        (point.clone(), "{}", r#"{"y":2}"#),
        (json!({"type": "object", "properties": {}}), "{}", r#"{"y":2}"#),
        (json!({"type": "array", "items": point}), r#"[{"x":1}]"#, r#"[{"y":1}]"#),
        (json!({"prefixItems": [point]}), r#"[{"x":1}]"#, r#"[{"y":1}]"#),
        (json!({"anyOf": [point, {"type": "null"}]}), r#"{"x":1}"#, r#"{"y":1}"#),
        (json!({"oneOf": [point, {"type": "null"}], "type": ["object", "null"]}), "{}",
            r#"{"y":1}"#),
        (json!({"$ref": "#/$defs/p", "description": "d"}), r#"{"x":1}"#, r#"{"y":1}"#),
        (json!({"allOf": [{"$ref": "#/$defs/p"}], "default": null}), r#"{"x":1}"#, r#"{"y":1}"#),
        (json!({"type": "object", "additionalProperties": point}), r#"{"k":{"x":1}}"#,
            r#"{"k":{"y":1}}"#),
        (json!({"type": "object", "properties": {"x": {}}, "minProperties": 1}), r#"{"x":1}"#,
            r#"{"x":1,"y":2}"#),
    ] {
        let whole = json!({"type": "object", "properties": {"v": schema}, "required": ["v"],
            "$defs": {"p": point}});
        for kind in [Kind::SchemaStrict, Kind::SchemaLoose] {
            let grammar = of_kind(kind, &whole.to_string());
            assert!(takes(&grammar, &format!("{{\"v\":{good}}}")), "{schema}: {good}");
            assert!(!takes(&grammar, &format!("{{\"v\":{bad}}}")), "{schema}: {bad}");
            assert!(!takes(&grammar, &format!("{{\"v\":{good},\"w\":1}}")), "{schema}");
        }
    }
}

#[test]
fn an_object_is_open_where_its_schema_says_so_or_is_a_part_of_another() {
    for (schema, text) in [
        (json!({"properties": {"x": {}}, "additionalProperties": true}), r#"{"x":1,"y":2}"#),
        (json!({"properties": {"x": {}}, "patternProperties": {"^y": {}}}), r#"{"x":1,"y":2}"#),
        (json!({"type": "object"}), r#"{"y":2}"#),
        (json!({"properties": {"x": {}}, "required": ["x", "y"]}), r#"{"x":1,"y":2}"#),
        (json!({"allOf": [{"properties": {"x": {}}}, {"properties": {"y": {}}}]}),
            r#"{"x":1,"y":2}"#),
        (json!({"allOf": [{"$ref": "#/$defs/p"}, {"properties": {"y": {}}, "required": ["y"]}],
            "$defs": {"p": {"properties": {"x": {}}, "required": ["x"]}}}), r#"{"x":1,"y":2}"#),
        (json!({"$ref": "#/$defs/p", "properties": {"y": {}},
            "$defs": {"p": {"properties": {"x": {}}}}}), r#"{"y":2}"#),
        (json!({"properties": {"x": {}}, "anyOf": [{"properties": {"y": {}}, "required": ["y"]},
            {"properties": {"z": {}}, "required": ["z"]}]}), r#"{"x":1,"y":2}"#),
    ] {
        let loose = of_kind(Kind::SchemaLoose, &schema.to_string());
        assert!(takes(&loose, text), "{schema}: {text}");
    }
    // One definition may be whole in one place and a part in another.
    let both = json!({"type": "object", "$defs": {"p": {"type": "object", "properties": {"x": {}}}},
        "properties": {"a": {"$ref": "#/$defs/p"}, "b": {"allOf": [{"$ref": "#/$defs/p"},
            {"properties": {"y": {}}}]}}});
    let grammar = strict(&both);
    assert!(takes(&grammar, r#"{"a":{"x":1},"b":{"x":1,"y":2}}"#));
    assert!(!takes(&grammar, r#"{"a":{"x":1,"y":2}}"#));
    // A declared name does not come again as an additional one.
    let open = strict(&json!({"properties": {"x": {}}, "additionalProperties": true}));
    assert!(!takes(&open, r#"{"x":1,"x":2}"#) && !takes(&open, r#"{"y":1,"x":2}"#));
}

/// A schema as the root, a property that may be absent, one that may not, and an element: its
/// places' beginning, the whole, and the text around its value.
fn at_each_place(
    schema: &serde_json::Value,
) -> [(&'static str, serde_json::Value, &'static str, &'static str); 4] {
    let within = json!({"properties": {"v": schema}});
    let mut demanded = within.clone();
    demanded["required"] = json!(["v"]);
    [
        ("#", schema.clone(), "", ""),
        ("#/properties/v", within, "{\"v\":", "}"),
        ("#/properties/v", demanded, "{\"v\":", "}"),
        ("#/items", json!({"type": "array", "items": schema}), "[", "]"),
    ]
}

#[test]
fn counts_of_members_that_cannot_be_enforced_are_listed_in_a_loose_schema() {
    let abc = json!({"a": {}, "b": {}, "c": {}});
    for (counts, dropped) in [
        (json!({"minProperties": 2}), vec!["minProperties"]),
        (json!({"maxProperties": 2}), vec!["maxProperties"]),
        (json!({"maxProperties": 0}), vec!["maxProperties"]),
        (json!({"minProperties": 1, "maxProperties": 2}), vec!["minProperties", "maxProperties"]),
        (json!({"minProperties": 2, "additionalProperties": false}), vec!["minProperties"]),
        (json!({"minProperties": 2, "maxProperties": 9}), vec!["minProperties"]),
    ] {
        let mut schema = json!({"type": "object", "properties": abc});
        schema.as_object_mut().unwrap().extend(counts.as_object().unwrap().clone());
        for (place, whole, before, after) in at_each_place(&schema) {
            let grammar = of_kind(Kind::SchemaLoose, &whole.to_string());
            let places: Vec<_> = dropped.iter().map(|key| format!("{place}/{key}")).collect();
            assert_eq!(grammar.ignored, places, "{whole}");
            for value in [r#"{"a":1}"#, r#"{"a":1,"b":2}"#] {
                assert!(takes(&grammar, &format!("{before}{value}{after}")), "{whole}: {value}");
            }
            assert!(!takes(&grammar, &format!("{before}{{\"d\":1}}{after}")), "{whole}");
        }
        refusal(Kind::SchemaStrict, &schema.to_string());
    }
}

#[test]
fn counts_of_members_that_can_be_enforced_are() {
    for (rest, good, bad) in [
        (json!({"minProperties": 1}), vec![r#"{"a":1}"#, r#"{"a":1,"b":2}"#], vec!["{}"]),
        (json!({"minProperties": 1, "maxProperties": 2}), vec![r#"{"a":1}"#], vec!["{}"]),
        (json!({"maxProperties": 1}), vec!["{}", r#"{"b":1}"#], vec![r#"{"a":1,"b":2}"#]),
        (json!({"minProperties": 2, "required": ["b"]}), vec![r#"{"a":1,"b":2}"#],
            vec![r#"{"b":1}"#]),
        (json!({"minProperties": 0, "maxProperties": 5}), vec!["{}", r#"{"b":1}"#], vec![]),
        (json!({"minProperties": 1, "required": ["a"]}), vec![r#"{"a":1}"#], vec![r#"{"b":1}"#]),
    ] {
        let mut schema = json!({"type": "object", "properties": {"a": {}, "b": {}}});
        schema.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        for kind in [Kind::SchemaStrict, Kind::SchemaLoose] {
            let grammar = of_kind(kind, &schema.to_string());
            assert!(grammar.ignored.is_empty(), "{schema}: {:?}", grammar.ignored);
            good.iter().for_each(|text| assert!(takes(&grammar, text), "{schema}: {text}"));
            bad.iter().for_each(|text| assert!(!takes(&grammar, text), "{schema}: {text}"));
        }
    }
    // No answer has two members of one.
    for kind in [Kind::SchemaStrict, Kind::SchemaLoose] {
        let none = json!({"properties": {"a": {}}, "type": "object", "minProperties": 2,
            "additionalProperties": false});
        refusal(kind, &none.to_string());
    }
}

#[test]
fn a_keyword_that_is_dropped_opens_nothing() {
    let point = json!({"type": "object", "properties": {"x": {}}, "required": ["x"]});
    let tagged = json!({"properties": {"t": {"const": "t"}}, "required": ["t"], "type": "object"});
    let other = json!({"properties": {"t": {"const": "o"}}, "required": ["t"], "type": "object"});
    for (schema, good, bad, dropped) in [
        (json!({"allOf": [{"$ref": "#/$defs/p"}], "unevaluatedProperties": false}), r#"{"x":1}"#,
            r#"{"x":1,"y":2}"#, "unevaluatedProperties"),
        (json!({"anyOf": [{"$ref": "#/$defs/p"}, {"type": "integer"}], "nullable": true}),
            r#"{"x":1}"#, r#"{"x":1,"y":2}"#, "nullable"),
    ] {
        let mut whole = schema.clone();
        whole["$defs"] = json!({"p": point, "t": tagged, "o": other});
        let grammar = of_kind(Kind::SchemaLoose, &whole.to_string());
        assert_eq!(grammar.ignored[0], format!("#/{dropped}"), "{schema}");
        assert!(takes(&grammar, good), "{schema}");
        assert!(!takes(&grammar, bad), "{schema}");
    }
    // `true` opens, as the standard has it.
    let open = json!({"properties": {"x": {}}, "unevaluatedProperties": true});
    assert!(takes(&of_kind(Kind::SchemaLoose, &open.to_string()), r#"{"x":1,"y":2}"#));
}

#[test]
fn a_definition_that_is_whole_and_a_part_counts_once() {
    let limits = Limits { max_enum_values: 3, max_refs: 1, ..LIMITS };
    let whole = json!({"type": "object", "$defs": {"p": {"type": "object",
        "properties": {"x": {"enum": [1, 2, 3]}, "y": {"type": "array", "uniqueItems": true}}}},
        "properties": {"a": {"$ref": "#/$defs/p"},
            "b": {"allOf": [{"$ref": "#/$defs/p"}, {"properties": {"z": {}}}]}}});
    let compiled = compile(&bytes_vocabulary(), Kind::SchemaLoose, &whole.to_string(), &limits);
    let grammar = compiled.unwrap_or_else(|f| panic!("{}", f.message));
    assert_eq!(grammar.ignored, ["#/$defs/p/properties/y/uniqueItems"]);
}

/// As pydantic writes a union with a discriminator.
#[test]
fn a_discriminator_is_an_annotation_of_its_branches() {
    let schema = json!({"type": "object", "required": ["pet"], "additionalProperties": false,
        "properties": {"pet": {"oneOf": [{"$ref": "#/$defs/cat"}, {"$ref": "#/$defs/dog"}],
            "discriminator": {"propertyName": "kind",
                "mapping": {"cat": "#/$defs/cat", "dog": "#/$defs/dog"}}}},
        "$defs": {"cat": {"type": "object", "properties": {"kind": {"const": "cat"}},
                "required": ["kind"]},
            "dog": {"type": "object", "properties": {"kind": {"const": "dog"},
                "good": {"type": "boolean"}}, "required": ["kind", "good"]}}});
    for kind in [Kind::SchemaStrict, Kind::SchemaLoose] {
        let grammar = of_kind(kind, &schema.to_string());
        assert!(grammar.ignored.is_empty(), "{:?}", grammar.ignored);
        assert!(takes(&grammar, r#"{"pet":{"kind":"cat"}}"#));
        assert!(takes(&grammar, r#"{"pet":{"kind":"dog","good":true}}"#));
        assert!(!takes(&grammar, r#"{"pet":{"kind":"dog"}}"#));
        assert!(!takes(&grammar, r#"{"pet":{"kind":"cow"}}"#));
    }
}

/// As pydantic and zod write results, versions, and unions of unions.
#[test]
fn branches_are_told_by_any_constant_type_and_through_lists() {
    let object = |properties: Value| {
        let names: Vec<&String> = properties.as_object().unwrap().keys().collect();
        json!({"type": "object", "properties": properties, "required": names})
    };
    let done = object(json!({"ok": {"const": true, "type": "boolean"}, "n": {"type": "null"}}));
    let failed = object(json!({"ok": {"const": false}, "n": {"type": "null"}}));
    let old = object(json!({"v": {"enum": [1, 2]}}));
    let new = object(json!({"v": {"$ref": "#/$defs/three"}}));
    let text = object(json!({"v": {"type": "string"}}));
    let (a, b) = (r##"{"$ref": "#/$defs/a"}"##, r##"{"$ref": "#/$defs/b"}"##);
    let [a, b]: [Value; 2] = [a, b].map(|text| serde_json::from_str(text).unwrap());
    for (one, other, third, good) in [
        (&done, &failed, json!({"type": "null"}), [r#"{"ok":true,"n":null}"#, "null"]),
        (&old, &new, text.clone(), [r#"{"v":3.5}"#, r#"{"v":"x"}"#]),
        (&old, &text, json!({"type": "integer"}), [r#"{"v":2}"#, "7"]),
    ] {
        let defs = json!({"a": one, "b": other, "three": {"const": 3.5}});
        for list in [json!([a, b, third]), json!([{"oneOf": [a, b]}, third])] {
            let grammar = strict(&json!({"properties": {"p": {"oneOf": list}}, "$defs": defs}));
            for text in good {
                assert!(takes(&grammar, &format!(r#"{{"p":{text}}}"#)), "{list}: {text}");
            }
            assert!(!takes(&grammar, r#"{"p":{"v":4}}"#), "{list}");
        }
    }
    for third in [json!({"enum": [0, 2.0]}), json!({}), json!({"type": ["null", "number"]})] {
        let defs = json!({"a": old, "b": object(json!({"v": third}))});
        let schema = json!({"properties": {"p": {"oneOf": [a, b]}}, "$defs": defs});
        let failure = refusal(Kind::SchemaStrict, &schema.to_string());
        assert!(failure.message.starts_with("#/properties/p/oneOf: "), "{}", failure.message);
    }
}

/// Branches that a tag does not divide stay `oneOf`, which a strict schema refuses.
#[test]
fn branches_that_may_both_hold_stay_one_of() {
    let branch = |tags: &Value, required: &[&str], kind: &str| {
        json!({"type": kind, "properties": {"t": tags, "x": {"type": "integer"}},
            "required": required})
    };
    let cat = branch(&json!({"const": "cat"}), &["t"], "object");
    let both = |other: &Value| {
        json!({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}],
            "$defs": {"a": cat, "b": other}})
    };
    for other in [
        branch(&json!({"enum": ["dog", "cat"]}), &["t"], "object"),
        branch(&json!({"type": "string"}), &["t"], "object"),
        branch(&json!({}), &["x"], "object"),
    ] {
        let failure = refusal(Kind::SchemaStrict, &both(&other).to_string());
        assert!(failure.message.contains("#/oneOf: the branches"), "{}", failure.message);
    }
    let tagless = strict(&both(&branch(&json!({"const": "dog"}), &["x"], "object")));
    assert!(takes(&tagless, r#"{"x":1}"#) && takes(&tagless, r#"{"t":"cat"}"#));
    let dogs = strict(&both(&branch(&json!({"enum": ["dog", "wolf"]}), &["t"], "object")));
    assert!(takes(&dogs, r#"{"t":"wolf"}"#) && takes(&dogs, r#"{"t":"cat","x":1}"#));
    assert!(!takes(&dogs, r#"{"x":1}"#));
}

#[test]
fn keywords_that_say_nothing_are_taken() {
    let names = json!({"title": "t", "type": "string"});
    for keyword in [
        json!({"propertyNames": names}),
        json!({"propertyNames": {}}),
        json!({"propertyNames": true}),
        json!({"unevaluatedProperties": true}),
        json!({"unevaluatedItems": {}}),
        json!({"dependentRequired": {"a": []}, "dependentSchemas": {"a": true}}),
        json!({"not": false, "uniqueItems": false}),
    ] {
        let mut schema = json!({"type": "object", "additionalProperties": {"type": "null"}});
        let added = keyword.as_object().cloned().unwrap_or_default();
        schema.as_object_mut().unwrap().extend(added);
        let grammar = strict(&schema);
        assert!(takes(&grammar, r#"{"b":null}"#) && !takes(&grammar, r#"{"b":1}"#), "{schema}");
        assert!(of_kind(Kind::SchemaLoose, &schema.to_string()).ignored.is_empty(), "{schema}");
    }
}

/// So TypeScript's `never` and zod's look.
#[test]
fn the_negation_of_everything_is_satisfied_by_nothing() {
    for never in [json!({"not": {}}), json!({"not": true}), json!({"not": {"title": "t"}})] {
        let branch = |kind: &str, other: &str| {
            json!({"type": "object", "properties": {kind: {"type": "null"}, other: never},
                "required": [kind]})
        };
        let either = strict(&json!({"anyOf": [branch("a", "b"), branch("b", "a")]}));
        assert!(takes(&either, r#"{"a":null}"#) && takes(&either, r#"{"b":null}"#), "{never}");
        assert!(!takes(&either, r#"{"a":null,"b":null}"#), "{never}");
        let closed = json!({"type": "object", "properties": {"a": {"type": "null"}},
            "additionalProperties": never});
        let closed = of_kind(Kind::SchemaLoose, &closed.to_string());
        assert!(closed.ignored.is_empty(), "{never}");
        assert!(takes(&closed, r#"{"a":null}"#) && !takes(&closed, r#"{"b":null}"#), "{never}");
        let demanded = json!({"type": "array", "items": never, "minItems": 1});
        let failure = refusal(Kind::SchemaLoose, &demanded.to_string());
        assert!(failure.message.starts_with('#'), "{}", failure.message);
    }
}

#[test]
fn unevaluated_properties_close_an_object_as_additional_ones_do() {
    let alone = strict(&json!({"type": "object", "unevaluatedProperties": false}));
    assert!(takes(&alone, "{}") && !takes(&alone, r#"{"a":1}"#));
    let beside = strict(&json!({"type": "object", "properties": {"a": {"type": "null"}},
        "additionalProperties": {"type": "boolean"}, "unevaluatedProperties": false}));
    assert!(takes(&beside, r#"{"a":null,"b":true}"#) && !takes(&beside, r#"{"b":1}"#));
}

#[test]
fn names_that_are_listed_or_have_a_pattern_close_an_object() {
    let nil = json!({"type": "null"});
    for (schema, good, bad) in [
        (
            json!({"type": "object", "propertyNames": {"enum": ["a", "b"], "title": "t"},
                "additionalProperties": nil}),
            vec!["{}", r#"{"a":null}"#, r#"{"a":null,"b":null}"#],
            vec![r#"{"c":null}"#, r#"{"a":1}"#],
        ),
        (
            json!({"type": "object", "propertyNames": {"type": "string", "enum": ["a", "b"]},
                "additionalProperties": nil, "required": ["a", "b"]}),
            vec![r#"{"a":null,"b":null}"#],
            vec!["{}", r#"{"a":null}"#],
        ),
        (
            json!({"type": "object", "propertyNames": {"enum": ["b", "z"]},
                "properties": {"z": {"type": "boolean"}, "y": {}}}),
            vec![r#"{"z":true}"#, r#"{"z":true,"b":[1]}"#],
            vec![r#"{"z":1}"#, r#"{"y":1}"#],
        ),
        (
            json!({"type": "object", "propertyNames": {"$ref": "#/$defs/e"},
                "$defs": {"e": {"$ref": "#/$defs/f"}, "f": {"enum": ["b", "z"], "type": "string"}},
                "additionalProperties": {"type": "null"}, "properties": {"a": {}, "b": {}}}),
            vec![r#"{"b":2}"#, r#"{"b":2,"z":null}"#, "{}"],
            vec![r#"{"a":1}"#, r#"{"z":1}"#],
        ),
        (
            json!({"type": "object", "propertyNames": {"const": "a"},
                "additionalProperties": false}),
            vec!["{}"],
            vec![r#"{"a":1}"#],
        ),
        (
            json!({"type": "object", "propertyNames": {"pattern": "^x_"},
                "additionalProperties": nil}),
            vec!["{}", r#"{"x_1":null,"x_":null}"#],
            vec![r#"{"y":null}"#, r#"{"x_":1}"#],
        ),
    ] {
        let grammar = strict(&schema);
        good.iter().for_each(|text| assert!(takes(&grammar, text), "{schema}: {text}"));
        bad.iter().for_each(|text| assert!(!takes(&grammar, text), "{schema}: {text}"));
    }
    for schema in [
        json!({"propertyNames": {"maxLength": 3}}),
        json!({"propertyNames": {"$ref": "#/propertyNames"}}),
        json!({"propertyNames": {"pattern": "(?=a)"}}),
        json!({"propertyNames": {"pattern": "a"}, "properties": {"b": {}}}),
        json!({"propertyNames": {"enum": ["a"]}, "patternProperties": {"b": {}}}),
    ] {
        let message = refusal(Kind::SchemaStrict, &schema.to_string()).message;
        assert!(message.starts_with("#/propertyNames: "), "{schema}: {message}");
    }
}
