//! Schemas and tags that refer to their parts, or repeat them, more often than their size says.

use std::time::Duration;

use serde_json::{json, Map, Value};

use super::tests::{bytes_vocabulary, LIMITS};
use super::{compile, Kind, Limits};
use crate::budget::Bounds;
use crate::Code;

/// The processor time that a server gives a schema. A grammar past its memory holds it for ever, so
/// each text that a tag repeats is counted before.
#[test]
fn parts_that_refer_to_each_other_or_repeat_end_soon() {
    let bounds = Bounds { memory_bytes: 512 << 20, timeout: Duration::from_secs(2) };
    let limits = Limits { bounds, ..LIMITS };
    let definitions: Map<String, Value> = (0..900)
        .map(|i| {
            let mut members: Map<String, Value> =
                (0..12).map(|k| (format!("p{k}"), json!({"type": "integer"}))).collect();
            let before = format!("#/$defs/d{}", i - 1);
            members.insert("z".into(), if i == 0 { json!({}) } else { json!({"$ref": before}) });
            let names: Vec<&String> = members.keys().collect();
            let object = json!({"type": "object", "required": names, "properties": members});
            (format!("d{i}"), object)
        })
        .collect();
    let all: Vec<Value> =
        definitions.keys().map(|name| json!({"$ref": format!("#/$defs/{name}")})).collect();
    let schema = json!({"anyOf": all, "$defs": definitions});
    let made = compile(&bytes_vocabulary(), Kind::SchemaStrict, &schema.to_string(), &limits);
    assert!(made.is_ok(), "{}", made.err().map_or(String::new(), |f| f.message));

    let long = "x".repeat(100_000);
    let texts: Vec<String> = (0..900).map(|i| format!("<{i}>")).collect();
    let any = json!({"type": "any_text"});
    let tags_with = |key: &str, content: &Value| -> Vec<Value> {
        texts.iter().map(|begin| json!({"begin": begin, key: content, "end": "!"})).collect()
    };
    let parameters: Map<String, Value> =
        (0..900).map(|i| (format!("p{i}"), json!({"$ref": "#/$defs/long"}))).collect();
    for tag in [
        json!({"format": {"type": "tag", "begin": "<", "end": [long],
            "content": {"type": "or", "elements": vec![any.clone(); 900]}}}),
        json!({"format": {"type": "triggered_tags", "triggers": texts,
            "tags": tags_with("content", &any), "excludes": [long]}}),
        json!({"structures": tags_with("schema", &json!({})), "triggers": texts,
            "excludes": [long]}),
        json!({"structures": [{"begin": "<", "end": ">", "content": "qwen_xml", "schema":
            {"properties": parameters, "$defs": {"long": {"enum": [long]}}}}], "triggers": ["<"]}),
    ] {
        let Err(failure) =
            compile(&bytes_vocabulary(), Kind::StructuralTag, &tag.to_string(), &limits)
        else {
            panic!("taken");
        };
        let is_named = failure.message.contains("its rules take more than");
        assert!(is_named && failure.code == Code::Limit, "{}", failure.message);
    }
}

/// Each object has the names of the list to which it refers.
#[test]
fn lists_of_names_are_copied_within_a_limit() {
    let names: Vec<String> = (0..200).map(|i| format!("name{i}")).collect();
    let schema = |num_objects: usize| {
        let object = json!({"type": "object", "propertyNames": {"$ref": "#/$defs/names"}});
        let all: Map<String, Value> =
            (0..num_objects).map(|i| (format!("p{i}"), object.clone())).collect();
        json!({"properties": all, "$defs": {"names": {"enum": names}}}).to_string()
    };
    let made = |num_objects: usize| {
        compile(&bytes_vocabulary(), Kind::SchemaStrict, &schema(num_objects), &LIMITS)
    };
    assert!(made(3).is_ok());
    let failure = made(2_000).err().expect("400,000 names");
    assert!(failure.message.ends_with("/propertyNames: the names are too many"));
}
