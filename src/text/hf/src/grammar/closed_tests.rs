//! What an answer may have beside the members that its schema declares, and between them.

use serde_json::json;

use super::tests::{of_kind, strict, takes};
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
