//! `propertyNames` that lists names or gives their pattern, in keywords that llguidance has. Typed
//! dictionaries have it (pydantic's `dict[Literal[..], T]`, zod's records).

use std::collections::HashSet;

use serde_json::{json, Map, Value};

use super::places::find;
use super::schema::is_silent;

/// References that are followed in a row at most.
const MAX_REFS: usize = 16;
/// Bytes of all listed names and of their schemas: each name gets a copy of the schema, and each
/// object that refers to a list a copy of the list.
pub const MAX_COPIED_BYTES: usize = 1 << 20;

/// The names that an object may have.
#[derive(Debug, PartialEq, Eq)]
pub enum Names {
    Listed(Vec<String>),
    Pattern(String),
}

/// The names that `propertyNames` of an object's schema allows. None where the keyword says more,
/// or where other keywords of the object speak of names by patterns. `source` is the whole schema,
/// which has the lists of names that are referred to (pydantic's `dict[Enum, T]`).
pub fn names_of(members: &Map<String, Value>, source: &Value) -> Option<Names> {
    let mut spoken = keywords_of(members.get("propertyNames")?)?;
    for _ in 0..MAX_REFS {
        let [("$ref", Value::String(place))] = spoken.as_slice() else { break };
        spoken = keywords_of(find(source, place)?)?;
    }
    if members.contains_key("patternProperties") {
        return None;
    }
    match spoken.as_slice() {
        [("enum", Value::Array(names))] => {
            let texts = names.iter().filter_map(Value::as_str).map(str::to_string);
            Some(Names::Listed(texts.collect()))
        }
        [("const", Value::String(name))] => Some(Names::Listed(vec![name.clone()])),
        [("pattern", Value::String(pattern))] if !members.contains_key("properties") => {
            Some(Names::Pattern(pattern.clone()))
        }
        _ => None,
    }
}

/// The keywords by which a schema speaks of texts.
fn keywords_of(schema: &Value) -> Option<Vec<(&str, &Value)>> {
    let all = schema.as_object()?.iter().map(|(key, value)| (key.as_str(), value));
    let speaks =
        |(key, value): &(&str, &Value)| !is_silent(key) && !(*key == "type" && *value == "string");
    Some(all.filter(speaks).collect())
}

/// Closes the checked object `members` to the names. False: the names are too many to be written.
/// `bytes_left`: of the copies that the whole schema may still have.
pub fn close_to(names: &Names, members: &mut Map<String, Value>, bytes_left: &mut usize) -> bool {
    let others = members.get("additionalProperties").cloned().unwrap_or(Value::Bool(true));
    match names {
        Names::Listed(names) => {
            let other_bytes = others.to_string().len();
            let copied_bytes = names.iter().map(|name| name.len() + other_bytes).sum();
            match bytes_left.checked_sub(copied_bytes) {
                Some(left) => *bytes_left = left,
                None => {
                    *bytes_left = 0;
                    return false;
                }
            }
            let declared = members.get("properties").and_then(Value::as_object).cloned();
            let mut declared = declared.unwrap_or_default();
            let listed: HashSet<&String> = names.iter().collect();
            declared.retain(|name, _| listed.contains(name));
            for name in names.iter().filter(|_| others != Value::Bool(false)) {
                declared.entry(name.clone()).or_insert_with(|| others.clone());
            }
            members.insert("properties".to_string(), Value::Object(declared));
        }
        Names::Pattern(pattern) => {
            members.insert("patternProperties".to_string(), json!({ pattern.as_str(): others }));
        }
    }
    members.insert("additionalProperties".to_string(), Value::Bool(false));
    true
}
