//! Schemas and tags that refer to their parts, or repeat them, more often than their size says.

use std::time::{Duration, Instant};

use serde_json::{json, Map, Value};

use super::compile::coded;
use super::tests::{bytes_vocabulary, LIMITS};
use super::{compile, Kind, Limits};
use crate::budget::{self, Bounds};
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

/// Definitions stand again with each parameter that is JSON. So many tags of some parameters would
/// take more memory than a compilation has, and hold it for ever.
#[test]
fn the_rules_of_all_tags_are_counted_together() {
    let names = vec![""; 3_000];
    let parameters: Map<String, Value> =
        (0..400).map(|i| (format!("p{i}"), json!({"$ref": "#/$defs/n"}))).collect();
    let schema = json!({"properties": parameters,
        "$defs": {"n": {"type": "object", "required": names}}});
    let structures: Vec<Value> = (0..16)
        .map(|i| {
            let begin = format!("<{i}>");
            json!({"begin": begin, "end": ">", "content": "qwen_xml", "schema": schema})
        })
        .collect();
    let tag = json!({"at_least_one": true, "structures": structures}).to_string();
    let made = compile(&bytes_vocabulary(), Kind::StructuralTag, &tag, &LIMITS);
    let failure = made.err().expect("58 MB of rules");
    assert!(failure.message.contains("its rules take more than"), "{}", failure.message);
}

#[test]
fn references_to_anchors_end_soon() {
    let bounds = Bounds { timeout: Duration::from_secs(2), ..LIMITS.bounds };
    let references = vec![json!({"$ref": "#a"}); 30_000];
    let schema = json!({"anyOf": references, "$defs": {"a": {"$anchor": "a", "type": "null"}}});
    let source = schema.to_string();
    let limits = Limits { bounds, ..LIMITS };
    let made = compile(&bytes_vocabulary(), Kind::SchemaStrict, &source, &limits);
    let message = made.err().map_or(String::new(), |failure| failure.message);
    assert!(!message.contains("ms of processor time"), "{message}");
}

#[test]
fn branches_of_a_long_list_are_compared_within_a_limit() {
    let closed = json!({"type": "object", "properties": {"a": {}}});
    let few = [vec![json!(true); 16_000], vec![closed]].concat();
    let bounds = Bounds { timeout: Duration::from_secs(2), ..LIMITS.bounds };
    let limits = Limits { bounds, ..LIMITS };
    for branches in [few, vec![json!(true); 90_000]] {
        let source = json!({"oneOf": branches}).to_string();
        let made = compile(&bytes_vocabulary(), Kind::SchemaStrict, &source, &limits);
        let failure = made.err().expect("branches that hold together");
        assert!(failure.message.starts_with("#/oneOf: the branches"), "{}", failure.message);
    }
}

#[test]
fn patterns_of_all_schemas_are_counted_together() {
    let schema = |num_patterns: usize| {
        let all: Map<String, Value> =
            (0..num_patterns).map(|i| (format!("^a{i}x"), json!({"type": "null"}))).collect();
        json!({"type": "object", "patternProperties": all})
    };
    let tag = |num_patterns: usize| {
        let structure =
            |name: &str| json!({"begin": name, "end": ">", "schema": schema(num_patterns)});
        json!({"at_least_one": true, "structures": [structure("<a "), structure("<b ")]})
    };
    let lark = |count: usize| format!("start: %json {} %json {}", schema(count), schema(count));
    for (kind, good, bad, place) in [
        (Kind::SchemaStrict, schema(200).to_string(), schema(201).to_string(), "#/pattern"),
        (
            Kind::StructuralTag,
            tag(20).to_string(),
            tag(101).to_string(),
            "#/structures/1/schema: more",
        ),
        (Kind::Lark, lark(20), lark(101), "the grammar: line 1: the schema: #: more than 200"),
    ] {
        let made = compile(&bytes_vocabulary(), kind, &good, &LIMITS);
        assert!(made.is_ok(), "{}", made.err().map_or(String::new(), |f| f.message));
        let failure = compile(&bytes_vocabulary(), kind, &bad, &LIMITS).err().expect("too many");
        assert_eq!(failure.code, Code::Limit, "{}", failure.message);
        assert!(failure.message.starts_with(place), "{}", failure.message);
    }
}

/// A thread whose caller has left counts as one of eight, after which no schema is compiled.
#[test]
fn work_for_which_nobody_waits_ends_at_its_next_schema() {
    let _lock = budget::stray_test_lock();
    budget::reset_strays_for_test();
    let definitions: Map<String, Value> = (0..9)
        .map(|i| {
            let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
            let list = if i == 8 { json!({}) } else { json!({"oneOf": vec![next; 8]}) };
            (format!("d{i}"), list)
        })
        .collect();
    let slow = json!({"oneOf": [{"$ref": "#/$defs/d0"}, {"type": "null"}], "$defs": definitions});
    let text = format!("start: {}", format!("%json {slow} ").repeat(3_000));
    let bounds = Bounds { timeout: Duration::from_millis(100), ..LIMITS.bounds };
    let made = budget::run(&bounds, move || super::lark::with_bounds(&text, &LIMITS));
    assert!(made.is_err(), "5 ms each");
    let left = Instant::now();
    while budget::num_strays() > 0 {
        std::thread::yield_now();
    }
    assert!(left.elapsed() < Duration::from_secs(2), "{:?}", left.elapsed());
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

/// A fault of the library is none of the client's, whatever words its message has.
#[test]
fn a_panic_that_llguidance_caught_is_internal() {
    for (message, code) in [
        ("panic: index 7 of a list that is too large", Code::Internal),
        ("the grammar is too large", Code::Limit),
        ("unknown rule panic: x", Code::InvalidArgument),
    ] {
        let failure = coded("#/properties/a", message);
        assert_eq!(failure.code, code, "{message}");
        assert!(failure.message.starts_with("#/properties/a: "), "{}", failure.message);
    }
}
