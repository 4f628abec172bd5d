//! Counts of an object's members: those that a grammar holds to stay, and the others are refused
//! (strict) or dropped and listed (loose).

use std::collections::HashSet;

use serde_json::{Map, Value};

use super::one_of::may_be_object;
use super::places::required_of;
use super::schema::{Checker, Strictness};
use crate::Failure;

const COUNTS: [&str; 2] = ["minProperties", "maxProperties"];

/// Whether an object may have members that the schema does not declare by name.
fn is_open(members: &Map<String, Value>) -> bool {
    members.get("additionalProperties") != Some(&Value::Bool(false))
        || members.contains_key("patternProperties")
}

impl Checker<'_> {
    /// Drops the counts of a closed object's members where every answer fits them, and where a
    /// loose schema's cannot be enforced. llguidance would find no answer at all.
    pub fn keep_counts_that_hold(
        &mut self,
        members: &mut Map<String, Value>,
        place: &str,
    ) -> Result<(), Failure> {
        if is_open(members) {
            return self.keep_fewest_that_holds(members, place);
        }
        let Some(Value::Object(declared)) = members.get("properties") else { return Ok(()) };
        let num_declared = declared.len() as u64;
        let required: HashSet<&str> = required_of(members).collect();
        let num_required =
            declared.keys().filter(|name| required.contains(name.as_str())).count() as u64;
        let [fewest, most] = COUNTS.map(|key| members.get(key).and_then(Value::as_u64));
        let fewest = fewest.filter(|fewest| *fewest > num_required);
        let most = most.filter(|most| *most < num_declared);
        let is_kept = [fewest.is_some(), most.is_some()];
        let has_answers = fewest.is_none_or(|fewest| fewest <= most.unwrap_or(num_declared))
            && most.is_none_or(|most| num_required <= most);
        // Beside the required members: at least one, at most one, or exactly one.
        let is_one = |count: Option<u64>| count.is_none_or(|count| count == num_required + 1);
        let is_dropped = self.strictness == Strictness::Loose
            && has_answers
            && !(is_one(fewest) && is_one(most));
        for (key, is_kept) in COUNTS.iter().zip(is_kept) {
            if is_dropped && is_kept {
                self.ignored.push(format!("{place}/{key}"));
            }
            if is_dropped || !is_kept {
                members.shift_remove(*key);
            }
        }
        Ok(())
    }

    /// Members that are not declared may have one name, and readers of JSON keep the last one of
    /// them. So only one member beside the required ones is certain.
    fn keep_fewest_that_holds(
        &mut self,
        members: &mut Map<String, Value>,
        place: &str,
    ) -> Result<(), Failure> {
        let Some(fewest) = members.get(COUNTS[0]).and_then(Value::as_u64) else { return Ok(()) };
        let required: HashSet<&str> = required_of(members).collect();
        let num_required = required.len() as u64;
        let declared = members.get("properties").and_then(Value::as_object);
        let has_optional =
            declared.is_some_and(|all| all.keys().any(|name| !required.contains(name.as_str())));
        let num_certain = num_required + u64::from(!has_optional);
        if fewest <= num_certain || !may_be_object(members) {
            return Ok(());
        }
        let why = "a grammar ensures the required members alone, and one more where all of \
                   properties are required: others may have one name";
        self.unsupported(&format!("{place}/{}", COUNTS[0]), why)?;
        if num_certain > num_required {
            members.insert(COUNTS[0].to_string(), Value::from(num_certain));
        } else {
            members.shift_remove(COUNTS[0]);
        }
        Ok(())
    }
}
