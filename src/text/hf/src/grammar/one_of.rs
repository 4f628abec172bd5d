//! Branches of `oneOf` that exclude each other by the value of one member, as tagged unions do.
//! llguidance does not look through `$ref` for that, so they become `anyOf`, which says the same.

use std::collections::HashSet;

use serde_json::{Map, Value};

/// Looked through in a row at most, of references that stand alone.
const MAX_REFS: usize = 16;

/// Rewrites each such `oneOf` in `schema`, a checked one whose references are in `definitions`.
pub fn rewrite(schema: &mut Value, definitions: &Map<String, Value>) {
    match schema {
        Value::Object(members) => {
            let branches = members.get("oneOf").and_then(Value::as_array);
            let is_tagged = branches.is_some_and(|list| exclude_by_a_tag(list, definitions));
            if is_tagged && !members.contains_key("anyOf") {
                if let Some(list) = members.remove("oneOf") {
                    members.insert("anyOf".to_string(), list);
                }
            }
            for (key, value) in members.iter_mut() {
                if !matches!(key.as_str(), "const" | "enum" | "required") {
                    rewrite(value, definitions);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| rewrite(item, definitions)),
        _ => {}
    }
}

/// Whether all branches are objects that must have one member whose texts differ from branch to
/// branch.
fn exclude_by_a_tag(branches: &[Value], definitions: &Map<String, Value>) -> bool {
    let Some(objects) =
        branches.iter().map(|b| resolved(b, definitions)).collect::<Option<Vec<_>>>()
    else {
        return false;
    };
    let names = objects.first().and_then(|first| first.get("required")).and_then(Value::as_array);
    names.into_iter().flatten().filter_map(Value::as_str).any(|name| {
        let mut seen = HashSet::new();
        objects.iter().all(|object| {
            tags(object, name).is_some_and(|texts| texts.into_iter().all(|text| seen.insert(text)))
        })
    })
}

/// The schema that a branch is, through references that stand alone.
fn resolved<'a>(
    mut branch: &'a Value,
    definitions: &'a Map<String, Value>,
) -> Option<&'a Map<String, Value>> {
    for _ in 0..MAX_REFS {
        let members = branch.as_object()?;
        match members.get("$ref") {
            None => return Some(members),
            Some(_) if members.len() > 1 => return None,
            Some(target) => {
                branch = definitions.get(target.as_str()?.strip_prefix("#/$defs/")?)?;
            }
        }
    }
    None
}

/// The different texts that the member `name` of an object may have; none = it need not be there,
/// or may be something else.
fn tags<'a>(object: &'a Map<String, Value>, name: &str) -> Option<HashSet<&'a str>> {
    if object.get("type")? != "object" {
        return None;
    }
    let required = object.get("required")?.as_array()?;
    if !required.iter().any(|known| known == name) {
        return None;
    }
    let member = object.get("properties")?.get(name)?;
    match (member.get("const"), member.get("enum").and_then(Value::as_array)) {
        (Some(text), _) => Some(HashSet::from([text.as_str()?])),
        (None, Some(texts)) => texts.iter().map(Value::as_str).collect(),
        (None, None) => None,
    }
}
