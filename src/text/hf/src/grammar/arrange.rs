//! Keywords of one schema in the order and the forms that llguidance joins rightly.

use serde_json::{Map, Value};

use super::places::type_names;
use super::schema::Step;

/// Keywords that stand for other schemas at the same place.
const JOINED: [&str; 6] = ["const", "enum", "allOf", "anyOf", "oneOf", "$ref"];

/// Moves the keywords that are not joined beside each other. llguidance 1.9.1 reads the group
/// between two joined ones by itself, and some say nothing without another (`additionalItems`
/// without `items`). `properties`, whose order is that of the answer, stays before or after the
/// joined ones.
pub fn gather(members: Map<String, Value>) -> Map<String, Value> {
    let is_joined = |key: &str| JOINED.contains(&key);
    let first_own = || members.keys().position(|key| !is_joined(key));
    let at = members.keys().position(|key| key == "properties").or_else(first_own).unwrap_or(0);
    let (mut before, mut own, mut after) = (Map::new(), Map::new(), Map::new());
    for (i, (key, value)) in members.into_iter().enumerate() {
        let part = match is_joined(&key) {
            false => &mut own,
            true if i < at => &mut before,
            true => &mut after,
        };
        part.insert(key, value);
    }
    before.extend(own);
    before.extend(after);
    before
}

/// Makes the step of integers a whole one. llguidance looks for a multiple of 0.3 between the
/// bounds, finds 1.5, and leaves a grammar without any integer.
pub fn hold_integers_to_steps(members: &mut Map<String, Value>) {
    let Some(types) = type_names(members) else { return };
    if !types.contains(&"integer") || types.contains(&"number") {
        return;
    }
    let step = members.get("multipleOf").and_then(Value::as_f64).and_then(Step::of);
    if let Some(whole) = step.and_then(Step::of_integers) {
        members.insert("multipleOf".to_string(), Value::from(whole));
    }
}
