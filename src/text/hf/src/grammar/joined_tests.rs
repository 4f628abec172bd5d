//! Schemas that hold for one value together, names that come twice, and schemas without an end.

use serde_json::json;

use super::tests::{of_kind, refusal, strict, takes};
use super::Kind;

/// llguidance reads the keywords between two of `allOf`, `$ref` ... by themselves.
#[test]
fn keywords_on_both_sides_of_all_of_are_read_together() {
    let all = json!([true]);
    for (schema, good, bad) in [
        (
            json!({"items": [{"type": "null"}], "allOf": all, "additionalItems": false,
                "type": "array"}),
            vec!["[]", "[null]"],
            vec!["[null,1]"],
        ),
        (
            json!({"type": "number", "minimum": 5, "allOf": all, "exclusiveMinimum": true}),
            vec!["5.5"],
            vec!["5"],
        ),
        (
            json!({"patternProperties": {"^x": {"type": "null"}}, "allOf": all,
                "additionalProperties": false, "type": "object"}),
            vec!["{}", r#"{"x":null}"#],
            vec![r#"{"y":1}"#],
        ),
        (
            json!({"allOf": [{"properties": {"b": {}}}], "type": "object",
                "properties": {"a": {}}}),
            vec![r#"{"b":1,"a":2}"#],
            vec![r#"{"a":2,"b":1}"#],
        ),
        (
            json!({"properties": {"a": {}}, "type": "object",
                "allOf": [{"properties": {"b": {}}}]}),
            vec![r#"{"a":2,"b":1}"#],
            vec![r#"{"b":1,"a":2}"#],
        ),
    ] {
        let grammar = strict(&schema);
        good.iter().for_each(|text| assert!(takes(&grammar, text), "{schema}: {text}"));
        bad.iter().for_each(|text| assert!(!takes(&grammar, text), "{schema}: {text}"));
    }
}

/// The drafts with `additionalItems` have no `prefixItems`. llguidance read neither then.
#[test]
fn prefixes_stay_beside_additional_items() {
    let both = json!({"type": "array", "prefixItems": [{"type": "null"}], "minItems": 1,
        "additionalItems": false});
    let message = refusal(Kind::SchemaStrict, &both.to_string()).message;
    assert!(message.starts_with("#/additionalItems: beside prefixItems"), "{message}");
    let loose = of_kind(Kind::SchemaLoose, &both.to_string());
    assert_eq!(loose.ignored, ["#/additionalItems"]);
    assert!(takes(&loose, "[null]") && takes(&loose, "[null,1]") && !takes(&loose, "[1]"));
    let lists = json!({"prefixItems": [{"type": "null"}], "items": [{"type": "string"}]});
    for kind in [Kind::SchemaStrict, Kind::SchemaLoose] {
        let message = refusal(kind, &lists.to_string()).message;
        assert!(message.starts_with("#/items: must be a schema beside prefixItems"), "{message}");
    }
}

/// An answer of one branch that satisfies the other too is no answer of `oneOf`, where the standard
/// leaves open what we close.
#[test]
fn closed_branches_of_one_of_exclude_each_other_without_the_closing() {
    let object = |properties: serde_json::Value, required: &[&str]| {
        json!({"type": "object", "properties": properties,
            "required": required})
    };
    let (a, b) = (json!({"a": {}}), json!({"b": {}}));
    for (one, other) in [
        (object(a.clone(), &["a"]), object(b.clone(), &["b"])),
        (object(a.clone(), &["a"]), json!({"type": "array"})),
        (
            json!({"anyOf": [object(a.clone(), &["a"]), {"type": "null"}]}),
            object(b.clone(), &["b"]),
        ),
        (object(a.clone(), &["a"]), json!({"type": "object", "additionalProperties": false})),
        (
            object(json!({"a": {"enum": ["x", "y"]}, "c": {}}), &["a"]),
            object(json!({"a": {"const": "z"}}), &[]),
        ),
    ] {
        let grammar = strict(&json!({"oneOf": [one, other]}));
        assert!(takes(&grammar, r#"{"a":"x"}"#), "{one} {other}");
        assert!(!takes(&grammar, r#"{"a":"x","b":1}"#), "{one} {other}");
    }
    for (one, other) in [
        (object(json!({"a": {}, "b": {}}), &["a"]), object(b.clone(), &["b"])),
        (object(a.clone(), &[]), object(b.clone(), &["b"])),
        (json!({"const": {"a": 1}}), object(b.clone(), &[])),
        (json!({"$ref": "#/$defs/a"}), object(b.clone(), &["b"])),
        (object(a.clone(), &["a"]), json!({"type": "object", "required": ["c"]})),
        (json!({"anyOf": [object(a.clone(), &[]), {"type": "null"}]}), object(b, &["b"])),
    ] {
        let schema = json!({"properties": {"v": {"oneOf": [one, other]}}, "$defs": {
            "a": object(a.clone(), &[])}});
        let message = refusal(Kind::SchemaStrict, &schema.to_string()).message;
        let place = "#/properties/v/oneOf: the branches do not exclude each other";
        assert!(message.starts_with(place), "{schema}: {message}");
        let loose = of_kind(Kind::SchemaLoose, &schema.to_string());
        assert_eq!(loose.ignored, ["#/properties/v/oneOf"], "{schema}");
        assert!(takes(&loose, r#"{"v":{"b":1}}"#) || takes(&loose, r#"{"v":{"c":1}}"#));
    }
}

/// A reader of JSON keeps the last of two members of one name.
#[test]
fn members_of_one_name_do_not_pass_for_two() {
    let nil = json!({"type": "null"});
    for (schema, good, bad) in [
        (json!({"minProperties": 1, "additionalProperties": nil}), r#"{"b":null}"#, "{}"),
        (
            json!({"minProperties": 2, "required": ["a"], "additionalProperties": nil}),
            r#"{"a":null,"b":null}"#,
            r#"{"a":null}"#,
        ),
        (json!({"minProperties": 2, "required": ["a", "b"]}), r#"{"a":1,"b":2}"#, r#"{"a":1}"#),
        (
            json!({"minProperties": 1, "patternProperties": {"^x": nil},
                "additionalProperties": false}),
            r#"{"x":null}"#,
            "{}",
        ),
    ] {
        let mut schema = schema;
        schema["type"] = json!("object");
        let grammar = strict(&schema);
        assert!(takes(&grammar, good) && !takes(&grammar, bad), "{schema}");
    }
    for schema in [
        json!({"minProperties": 2}),
        json!({"minProperties": 2, "additionalProperties": nil}),
        json!({"minProperties": 3, "required": ["a"]}),
        json!({"minProperties": 2, "patternProperties": {"^x": nil},
            "additionalProperties": false}),
        json!({"minProperties": 2, "propertyNames": {"pattern": "^x"}}),
        json!({"minProperties": 1, "properties": {"a": {}}, "additionalProperties": true}),
    ] {
        let message = refusal(Kind::SchemaStrict, &schema.to_string()).message;
        assert!(message.starts_with("#/minProperties: a grammar ensures"), "{schema}: {message}");
    }
    let loose = json!({"type": "object", "minProperties": 3, "additionalProperties": nil});
    let loose = of_kind(Kind::SchemaLoose, &loose.to_string());
    assert_eq!(loose.ignored, ["#/minProperties"]);
    assert!(takes(&loose, r#"{"x":null}"#) && !takes(&loose, "{}"), "one member is certain");
    // The keyword says nothing of other types.
    strict(&json!({"type": "array", "minProperties": 2}));
}

/// `"\u0061"` is the name `"a"` to a reader.
#[test]
fn a_declared_name_does_not_come_in_another_spelling() {
    let nil = json!({"type": "null"});
    for schema in [
        json!({"properties": {"a": nil}, "additionalProperties": true}),
        json!({"patternProperties": {"^a": nil}}),
        json!({"required": ["a"], "type": "object"}),
        json!({"anyOf": [{"properties": {"a": nil}, "additionalProperties": true}]}),
        json!({"$ref": "#/$defs/o", "$defs": {"o": {"properties": {"a": nil},
            "additionalProperties": {"type": "integer"}}}}),
    ] {
        let grammar = strict(&schema);
        for text in [r#"{"\u0061":2}"#, r#"{"a":null,"\u0061":2}"#] {
            assert!(!takes(&grammar, text), "{schema}: {text}");
        }
        assert!(takes(&grammar, r#"{"a":null,"b\n\"":2}"#), "{schema}");
    }
    for text in [
        format!("start: %json {}", json!({"properties": {"a": nil}})),
        format!(
            "start: %json {}",
            json!({"properties": {"a": nil}, "type": "object",
            "x-guidance": {"whitespace_flexible": false}})
        ),
    ] {
        let grammar = of_kind(Kind::Lark, &text);
        assert!(!takes(&grammar, r#"{"\u0061":2}"#) && takes(&grammar, r#"{"b":2}"#), "{text}");
    }
    // A constant that needs such an escape keeps it.
    let control = json!({"properties": {"a": {"enum": ["\u{1}", "b"]}}, "required": ["a"],
        "additionalProperties": true});
    let grammar = strict(&control);
    assert!(takes(&grammar, r#"{"a":"\u0001"}"#) && takes(&grammar, r#"{"a":"b"}"#));
    // Where no name can be mistaken a text has all of its spellings.
    let closed = strict(&json!({"type": "object", "properties": {"a": {}}}));
    assert!(takes(&closed, r#"{"a":"\u0061"}"#));
}

#[test]
fn a_schema_that_demands_itself_without_end_is_refused_at_its_place() {
    let list = json!({"type": "array", "items": {"$ref": "#/$defs/l"}, "minItems": 1});
    let node = json!({"type": "object", "required": ["n"],
        "properties": {"n": {"$ref": "#/$defs/n"}}});
    for (schema, place) in [
        (json!({"type": "object", "required": ["n"], "properties": {"n": {"$ref": "#"}}}), "#"),
        (json!({"$ref": "#/$defs/l", "$defs": {"l": list}}), "#/$defs/l"),
        (json!({"prefixItems": [{"$ref": "#"}], "minItems": 1, "type": "array"}), "#"),
        (json!({"type": "object", "required": ["x"], "additionalProperties": {"$ref": "#"}}), "#"),
        (
            json!({"type": "array", "minItems": 2, "items": {"anyOf": [{"$ref": "#/$defs/l"},
            {"$ref": "#/$defs/n"}]}, "$defs": {"l": list, "n": node}}),
            "#/$defs/l",
        ),
        (json!({"allOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": node}}), "#/$defs/n"),
    ] {
        for kind in [Kind::SchemaStrict, Kind::SchemaLoose] {
            let message = refusal(kind, &schema.to_string()).message;
            let beginning = format!("{place}: it demands itself again without end");
            assert!(message.starts_with(&beginning), "{schema}: {message}");
        }
    }
    // Where an answer can do without such a schema it does not begin one.
    for (schema, good, bad, num_taken) in [
        (json!({"type": "object", "properties": {"n": {"$ref": "#/$defs/n"}}}), "{}", "{\"n", 1),
        (json!({"type": "array", "items": {"$ref": "#/$defs/n"}}), "[]", "[{", 1),
        (json!({"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}), "null", "{", 0),
    ] {
        let mut whole = schema;
        whole["$defs"] = json!({"n": node});
        let grammar = strict(&whole);
        assert!(takes(&grammar, good), "{whole}");
        assert_eq!(super::tests::num_taken(&grammar, bad), num_taken, "{whole}");
    }
    let tree = json!({"type": "object", "required": ["n"], "properties": {"n": {"anyOf": [
        {"$ref": "#"}, {"type": "null"}]}}});
    assert!(takes(&strict(&tree), r#"{"n":{"n":null}}"#));
}

/// No answer would come to an end: llguidance looks for a multiple of 0.3 alone.
#[test]
fn integers_of_a_broken_step_exist_or_are_refused() {
    let of = |most: f64| {
        json!({"type": ["integer", "null"], "minimum": 1, "maximum": most,
        "multipleOf": 0.3})
    };
    let grammar = strict(&of(3.5));
    assert!(takes(&grammar, "3") && takes(&grammar, "null") && !takes(&grammar, "2"));
    assert_eq!(super::tests::num_taken(&strict(&of(2.5)), "1"), 0);
    let alone = json!({"type": "integer", "minimum": 1, "maximum": 2.5, "multipleOf": 0.3});
    let message = refusal(Kind::SchemaStrict, &alone.to_string()).message;
    assert!(message.starts_with("#: Unsatisfiable schema: "), "{message}");
}

/// A value that looks like a reference leads nowhere.
#[test]
fn constants_have_no_references() {
    let schema = json!({"properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"],
        "$defs": {"x": {"const": {"$ref": "#/$defs/r999"}}}});
    let grammar = strict(&schema);
    assert!(takes(&grammar, r##"{"a":{"$ref":"#/$defs/r999"}}"##) && !takes(&grammar, "{}"));
}

#[test]
fn properties_with_the_names_of_keywords_are_schemas() {
    let branch = |kind: &str| {
        json!({"type": "object", "required": ["k"], "properties": {"k": {"const": kind}}})
    };
    let union = json!({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]});
    for name in ["const", "enum", "required", "oneOf"] {
        let schema = json!({"type": "object", "properties": {name: union}, "required": [name],
            "$defs": {"a": branch("a"), "b": branch("b")}});
        let grammar = strict(&schema);
        assert!(takes(&grammar, &json!({name: {"k": "b"}}).to_string()), "{name}");
        assert!(!takes(&grammar, &json!({name: {"k": "c"}}).to_string()), "{name}");
    }
}
