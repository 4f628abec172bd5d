//! Schemas that demand themselves again and again: no JSON that ends satisfies them, and an answer
//! would go on until its tokens end.

use std::cell::Cell;
use std::collections::HashSet;

use serde_json::{Map, Value};

use super::parts::{each_part, each_part_mut};
use super::places::{escaped, required_of, target_of, type_names};
use crate::Failure;

/// Schemas that may be looked at before it is known which have an end: some 0.5 s. Each definition
/// is looked at again when one that it refers to turns out to have one.
const MAX_LOOKS: usize = 1 << 21;

/// Replaces each such schema by `false`, which says the same, so that no answer enters one that
/// need not. Fails where the whole schema is one. A schema has no finite instance where none of
/// its definitions' instances ends, of which the least fixed point is the exact set.
pub fn prune(
    schema: &mut Value,
    definitions: &mut Map<String, Value>,
    places: &[String],
) -> Result<(), Failure> {
    let known = ends_of(definitions)?;
    if known.ends.iter().all(|ends| *ends) {
        return Ok(());
    }
    if !known.of(schema) {
        let place = known.cause(schema, definitions, places);
        return Err(Failure::invalid(format!(
            "{place}: it demands itself again without end, so no JSON can satisfy it"
        )));
    }
    known.cut(schema);
    for (idx, definition) in definitions.values_mut().enumerate() {
        if known.ends[idx] {
            known.cut(definition);
        } else {
            *definition = Value::Bool(false);
        }
    }
    Ok(())
}

/// The definitions that have an instance.
fn ends_of(definitions: &Map<String, Value>) -> Result<Ends, Failure> {
    let all: Vec<&Value> = definitions.values().collect();
    let mut known = Ends { ends: vec![false; all.len()], looks: Cell::new(MAX_LOOKS) };
    let mut users = vec![Vec::new(); all.len()];
    for (idx, definition) in all.iter().enumerate() {
        let mut targets = HashSet::new();
        add_targets(definition, &mut targets);
        targets.into_iter().for_each(|target: usize| users[target].push(idx));
    }
    // References mostly lead to later definitions, so the last one is the first to look at.
    let mut waiting: Vec<usize> = (0..all.len()).collect();
    while let Some(idx) = waiting.pop() {
        if !known.ends[idx] && known.of(all[idx]) {
            known.ends[idx] = true;
            waiting.extend(users[idx].iter().filter(|user| !known.ends[**user]));
        }
        if known.looks.get() == 0 {
            return Err(Failure::limit(
                "#: its definitions refer to each other too often to tell which have an end",
            ));
        }
    }
    known.looks.set(usize::MAX);
    Ok(known)
}

fn add_targets(schema: &Value, targets: &mut HashSet<usize>) {
    targets.extend(target_of(schema));
    each_part(schema, &mut |_, part| add_targets(part, targets));
}

/// The definitions that have an instance, as far as that is known.
struct Ends {
    ends: Vec<bool>,
    /// Schemas that may still be looked at.
    looks: Cell<usize>,
}

/// Elements of an array that have schemas of their own, and the schema of the others.
fn elements(members: &Map<String, Value>) -> (&[Value], Option<&Value>) {
    let list = |key: &str| members.get(key).and_then(Value::as_array).map(Vec::as_slice);
    match (list("items"), list("prefixItems")) {
        (Some(items), _) => (items, members.get("additionalItems")),
        (None, prefixes) => (prefixes.unwrap_or_default(), members.get("items")),
    }
}

/// The schemas of the parts that an array or an object of this schema has in any case, and the
/// names of an object's.
fn parts_of<'a>(members: &'a Map<String, Value>, kind: &str) -> Vec<(Option<&'a str>, &'a Value)> {
    if kind == "array" {
        let num_fewest = members.get("minItems").and_then(Value::as_u64).unwrap_or(0);
        let num_fewest = usize::try_from(num_fewest).unwrap_or(usize::MAX);
        let (first, rest) = elements(members);
        let rest = rest.filter(|_| first.len() < num_fewest);
        return first.iter().take(num_fewest).chain(rest).map(|v| (None, v)).collect();
    }
    let others = match members.contains_key("patternProperties") {
        true => None,
        false => members.get("additionalProperties"),
    };
    let schema_of = |name: &str| members.get("properties").and_then(|all| all.get(name)).or(others);
    required_of(members).filter_map(|name| Some((Some(name), schema_of(name)?))).collect()
}

/// The types of a schema that are arrays or objects; none = it has values of other types too.
fn nested_types(members: &Map<String, Value>) -> Option<Vec<&str>> {
    if members.contains_key("const") || members.contains_key("enum") {
        return None;
    }
    let types = type_names(members)?;
    types.iter().all(|name| matches!(*name, "array" | "object")).then_some(types)
}

impl Ends {
    /// Whether a value that ends may satisfy the schema, as far as is known.
    fn of(&self, schema: &Value) -> bool {
        let Value::Object(members) = schema else { return true };
        let Some(left) = self.looks.get().checked_sub(1) else { return false };
        self.looks.set(left);
        let list = |key: &str| members.get(key).and_then(Value::as_array);
        let some = |key: &str| list(key).is_none_or(|all| all.iter().any(|one| self.of(one)));
        target_of(schema).is_none_or(|idx| self.ends[idx])
            && list("allOf").is_none_or(|all| all.iter().all(|one| self.of(one)))
            && some("anyOf")
            && some("oneOf")
            && nested_types(members).is_none_or(|types| {
                types.iter().any(|kind| parts_of(members, kind).iter().all(|(_, v)| self.of(v)))
            })
    }

    /// The place of a definition that leads to itself, from a schema without an end.
    fn cause(&self, schema: &Value, definitions: &Map<String, Value>, places: &[String]) -> String {
        let definitions: Vec<&Value> = definitions.values().collect();
        let (mut here, mut place, mut seen) = (schema, "#".to_string(), HashSet::new());
        loop {
            if let Some(idx) = target_of(here).filter(|idx| !self.ends[*idx]) {
                if !seen.insert(idx) {
                    return places[idx].clone();
                }
                (here, place) = (definitions[idx], places[idx].clone());
                continue;
            }
            let Some(members) = here.as_object() else { return place };
            let lists = ["allOf", "anyOf", "oneOf"].into_iter().flat_map(|key| {
                let list = members.get(key).and_then(Value::as_array);
                list.into_iter().flatten().map(move |v| (key.to_string(), v))
            });
            let kinds = nested_types(members).unwrap_or_default();
            let place_of = |name: Option<&str>| {
                name.map_or("items".to_string(), |name| format!("properties/{}", escaped(name)))
            };
            let nested = kinds.iter().flat_map(|kind| parts_of(members, kind));
            let nested = nested.map(|(name, part)| (place_of(name), part));
            match lists.chain(nested).find(|(_, part)| !self.of(part)) {
                Some((key, part)) => (here, place) = (part, format!("{place}/{key}")),
                None => return place,
            }
        }
    }

    /// Replaces the parts of a schema that have no end.
    fn cut(&self, schema: &mut Value) {
        each_part_mut(schema, &mut |_, part| match self.of(part) {
            true => self.cut(part),
            false => *part = Value::Bool(false),
        });
    }
}
