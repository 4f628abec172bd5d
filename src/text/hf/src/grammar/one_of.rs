//! Finds branches of `oneOf` that exclude each other by their types or by a member, as in tagged
//! unions. llguidance does not look through `$ref` for that, so they become `anyOf`, which means
//! the same there. Branches that differ only because we closed their objects count as overlapping.

use std::collections::{HashMap, HashSet};
use std::ops::BitOr;

use serde_json::{Map, Value};

use super::parts::each_part_mut;
use super::places::{required_of, target_of, type_names};

/// References that stand alone, followed in a row.
const MAX_REFS: usize = 16;
/// Names that are compared for one schema: some 20 ms. Many lists may refer to one branch with many
/// names, so nothing else bounds their product. A `oneOf` beyond this bound stays as it is, or
/// counts as overlapping.
const MAX_LOOKS: usize = 1 << 22;
/// Comparing two branches costs as much as comparing this many names.
const LOOKS_OF_A_PAIR: usize = 4;
/// Branches of one list, and of the lists in it, that are compared in pairs. A longer list is a
/// tagged union or stays as it is.
const MAX_COMPARED: usize = 64;
/// Branches of one list, and of the lists in it. A longer list counts as overlapping.
const MAX_BRANCHES: usize = 1 << 14;
/// Marks an object that the standard leaves open and we close.
pub const NARROWED: &str = "x-narrowed";
pub const OVERLAP: &str = "the branches do not exclude each other by their types or by a \
                           required constant; use anyOf";

/// Settles each `oneOf` of a checked schema and of its definitions: a tagged union becomes `anyOf`.
/// Returns the places of those whose branches may hold together: they become `anyOf` too.
pub fn settle(
    schema: &mut Value,
    definitions: &mut Map<String, Value>,
    places: &[String],
) -> Vec<String> {
    let all = definitions.clone();
    let mut walk = Walk::new(&all, MAX_LOOKS);
    walk.rewrite(schema);
    for (definition, place) in definitions.values_mut().zip(places) {
        walk.path = vec![place.clone()];
        walk.rewrite(definition);
    }
    walk.overlaps
}

struct Walk<'a> {
    definitions: &'a Map<String, Value>,
    /// Whether each definition is an object that we closed; filled at the first question.
    narrowed: Option<Vec<bool>>,
    /// Names that may still be looked at.
    looks: usize,
    path: Vec<String>,
    overlaps: Vec<String>,
}

impl<'a> Walk<'a> {
    fn new(definitions: &'a Map<String, Value>, looks: usize) -> Self {
        let path = vec!["#".to_string()];
        Walk { definitions, narrowed: None, looks, path, overlaps: Vec::new() }
    }

    fn rewrite(&mut self, schema: &mut Value) {
        if let Value::Object(members) = schema {
            self.settle_list(members);
        }
        each_part_mut(schema, &mut |key, part| {
            self.path.push(key);
            self.rewrite(part);
            self.path.pop();
        });
    }

    fn settle_list(&mut self, members: &mut Map<String, Value>) {
        let Some(list) = members.get("oneOf").and_then(Value::as_array) else { return };
        let groups = groups_of(list, self.definitions, &mut self.looks);
        // llguidance checks the other lists too, and its errors keep their places.
        let is_ours = list.iter().any(|branch| {
            ["$ref", "anyOf", "oneOf", NARROWED].iter().any(|key| branch.get(*key).is_some())
        });
        let is_divided = groups.is_some_and(|groups| {
            exclude_by_a_tag(&groups, self.definitions, &mut self.looks)
                || (is_ours && self.are_divided(&groups))
        });
        // llguidance compares each pair of the branches that stay: 40,000 pairs take 2.5 s, and no
        // limit ends that work.
        let overlaps = !is_divided && (list.len() > MAX_BRANCHES || self.overlap_if_open(list));
        if overlaps {
            self.overlaps.push(format!("{}/oneOf", self.path.join("/")));
        }
        if (is_divided || overlaps) && !members.contains_key("anyOf") {
            if let Some(list) = members.shift_remove("oneOf") {
                members.insert("anyOf".to_string(), list);
            }
        }
    }

    /// Whether no answer of one group satisfies a schema of another.
    fn are_divided(&mut self, groups: &[Vec<&Map<String, Value>>]) -> bool {
        if groups.iter().map(Vec::len).sum::<usize>() > MAX_COMPARED {
            return false;
        }
        groups.iter().enumerate().all(|(i, group)| {
            let others: Vec<_> = groups.iter().skip(i + 1).flatten().collect();
            group.iter().all(|one| others.iter().all(|other| self.differ(one, other)))
        })
    }

    /// `are_apart` where values that are no objects count too.
    fn differ(&mut self, one: &Map<String, Value>, other: &Map<String, Value>) -> bool {
        match types_of(one) & types_of(other) {
            0 => true,
            OBJECT => {
                spend(&mut self.looks, LOOKS_OF_A_PAIR).is_some()
                    && self.are_apart_as_objects(one, other)
            }
            _ => false,
        }
    }

    /// Whether two branches are kept apart by the closing of an object alone.
    fn overlap_if_open(&mut self, branches: &[Value]) -> bool {
        let definitions = self.definitions;
        let known = self.narrowed.get_or_insert_with(|| narrowed_of(definitions));
        let marks: Vec<bool> = branches.iter().map(|branch| is_narrowed(branch, known)).collect();
        let marked: Vec<usize> = (0..branches.len()).filter(|idx| marks[*idx]).collect();
        marked.iter().any(|i| {
            // Two marked branches are compared once.
            let mut others = (0..branches.len()).filter(|k| k > i || !marks[*k]);
            others.any(|k| !self.are_apart(&branches[*i], &branches[k]))
        })
    }

    fn are_apart(&mut self, one: &Value, other: &Value) -> bool {
        if spend(&mut self.looks, LOOKS_OF_A_PAIR).is_none() {
            return false;
        }
        let definitions = self.definitions;
        let both = [one, other].map(|branch| resolved(branch, definitions));
        let [Some(one), Some(other)] = both else { return false };
        if !may_be_object(one) || !may_be_object(other) {
            return true;
        }
        self.are_apart_as_objects(one, other)
    }

    fn are_apart_as_objects(
        &mut self,
        one: &Map<String, Value>,
        other: &Map<String, Value>,
    ) -> bool {
        is_plain(one)
            && is_plain(other)
            && self.excludes(one, other).unwrap_or(false)
            && self.excludes(other, one).unwrap_or(false)
    }

    /// Whether no answer of the branch `one` satisfies `other`, whose objects the standard leaves
    /// open. None = not known.
    fn excludes(&mut self, one: &Map<String, Value>, other: &Map<String, Value>) -> Option<bool> {
        let empty = Map::new();
        let [ours, theirs] = [one, other]
            .map(|branch| branch.get("properties").and_then(Value::as_object).unwrap_or(&empty));
        let [demanded, their_demands] =
            [one, other].map(|branch| required_of(branch).collect::<Vec<_>>());
        spend(&mut self.looks, demanded.len() + their_demands.len())?;
        let is_only = |branch: &Map<String, Value>| {
            branch.get("additionalProperties") == Some(&Value::Bool(false))
        };
        let lacks_one = is_only(one) && their_demands.iter().any(|name| !ours.contains_key(*name));
        let is_shut = is_only(other) && !other.contains_key(NARROWED);
        let has_more = is_shut && demanded.iter().any(|name| !theirs.contains_key(*name));
        if lacks_one || has_more {
            return Some(true);
        }
        for name in demanded.iter().chain(&their_demands) {
            let (Some(our), Some(their)) = (ours.get(*name), theirs.get(*name)) else { continue };
            let definitions = self.definitions;
            let both = [our, their].map(|member| resolved(member, definitions));
            let [Some(our), Some(their)] = both else { continue };
            if types_of(our) & types_of(their) == 0 {
                return Some(true);
            }
            let (Some(ours), Some(theirs)) = (tags_of(our), tags_of(their)) else { continue };
            spend(&mut self.looks, ours.len() + theirs.len())?;
            let known: HashSet<Tag> = ours.into_iter().collect();
            if !theirs.iter().any(|tag| known.contains(tag)) {
                return Some(true);
            }
        }
        None
    }
}

/// Calls `look` with a schema and with the schemas of its lists, which hold for the same place.
fn each_of_place<'a>(schema: &'a Value, look: &mut dyn FnMut(&'a Value)) {
    look(schema);
    for key in ["allOf", "anyOf", "oneOf"] {
        let list = schema.get(key).and_then(Value::as_array);
        list.into_iter().flatten().for_each(|part| each_of_place(part, look));
    }
}

/// Whether we closed an object at the place of `schema` itself. `known`: the definitions for which
/// that is true.
fn is_narrowed(schema: &Value, known: &[bool]) -> bool {
    let mut is_ours = false;
    each_of_place(schema, &mut |part| {
        is_ours |= part.get(NARROWED).is_some() || target_of(part).is_some_and(|idx| known[idx]);
    });
    is_ours
}

fn narrowed_of(definitions: &Map<String, Value>) -> Vec<bool> {
    let mut known = vec![false; definitions.len()];
    let mut users = vec![Vec::new(); definitions.len()];
    for (idx, definition) in definitions.values().enumerate() {
        each_of_place(definition, &mut |part| {
            known[idx] |= part.get(NARROWED).is_some();
            target_of(part).into_iter().for_each(|target| users[target].push(idx));
        });
    }
    let mut waiting: Vec<usize> = (0..known.len()).filter(|idx| known[*idx]).collect();
    while let Some(idx) = waiting.pop() {
        for user in &users[idx] {
            if !std::mem::replace(&mut known[*user], true) {
                waiting.push(*user);
            }
        }
    }
    known
}

pub fn may_be_object(branch: &Map<String, Value>) -> bool {
    types_of(branch) & OBJECT != 0
}

/// Whether a branch has no other schema, and no listed value, in its place.
fn is_plain(branch: &Map<String, Value>) -> bool {
    const OTHERS: [&str; 7] =
        ["$ref", "allOf", "anyOf", "oneOf", "const", "enum", "patternProperties"];
    !OTHERS.iter().any(|key| branch.contains_key(*key))
}

/// A value that may tell one branch from another. Numbers are their bits as doubles.
#[derive(PartialEq, Eq, Hash)]
enum Tag<'a> {
    Null,
    Bool(bool),
    Number(u64),
    Text(&'a str),
}

fn tag_of(value: &Value) -> Option<Tag<'_>> {
    match value {
        Value::Null => Some(Tag::Null),
        Value::Bool(flag) => Some(Tag::Bool(*flag)),
        // 0.0 makes -0.0 the 0 that it equals.
        Value::Number(number) => Some(Tag::Number((number.as_f64()? + 0.0).to_bits())),
        Value::String(text) => Some(Tag::Text(text)),
        _ => None,
    }
}

/// The values that a schema lists; none = it allows other values too, or arrays or objects.
fn tags_of(schema: &Map<String, Value>) -> Option<Vec<Tag<'_>>> {
    match (schema.get("const"), schema.get("enum")) {
        (Some(only), _) => Some(vec![tag_of(only)?]),
        (None, values) => values?.as_array()?.iter().map(tag_of).collect(),
    }
}

const OBJECT: u8 = 1;
const ALL_TYPES: u8 = u8::MAX;

fn type_named(name: &str) -> u8 {
    match name {
        "object" => OBJECT,
        "array" => 2,
        "string" => 4,
        "number" | "integer" => 8,
        "boolean" => 16,
        _ => 32, // null
    }
}

/// The types of a schema's values as bits, by its own keywords.
fn types_of(schema: &Map<String, Value>) -> u8 {
    let of_value = |value: &Value| {
        type_named(match value {
            Value::Null => "null",
            Value::Bool(_) => "boolean",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        })
    };
    match (type_names(schema), schema.get("const"), schema.get("enum")) {
        (Some(names), _, _) => names.into_iter().map(type_named).fold(0, BitOr::bitor),
        (None, Some(value), _) => of_value(value),
        (None, None, Some(Value::Array(values))) => {
            values.iter().map(of_value).fold(0, BitOr::bitor)
        }
        _ => ALL_TYPES,
    }
}

/// The schemas of each branch: the branch itself, or the schemas of its list. None = a branch is no
/// object of keywords, or there are too many.
fn groups_of<'a>(
    branches: &'a [Value],
    definitions: &'a Map<String, Value>,
    looks: &mut usize,
) -> Option<Vec<Vec<&'a Map<String, Value>>>> {
    let mut num_left = MAX_BRANCHES;
    let mut groups = Vec::with_capacity(branches.len());
    for branch in branches {
        let (mut group, mut waiting) = (Vec::new(), vec![(branch, 0)]);
        while let Some((schema, depth)) = waiting.pop() {
            spend(&mut num_left, 1)?;
            spend(looks, 1)?;
            let members = resolved(schema, definitions)?;
            let list = ["anyOf", "oneOf"].iter().find_map(|key| members.get(*key)?.as_array());
            match list.filter(|_| members.len() == 1) {
                Some(_) if depth == MAX_REFS => return None,
                Some(list) => waiting.extend(list.iter().map(|part| (part, depth + 1))),
                None => group.push(members),
            }
        }
        groups.push(group);
    }
    Some(groups)
}

/// Whether all schemas are objects that require one same member, whose values differ between the
/// groups.
fn exclude_by_a_tag(
    groups: &[Vec<&Map<String, Value>>],
    definitions: &Map<String, Value>,
    looks: &mut usize,
) -> bool {
    let first = groups.first().and_then(|group| group.first());
    first.into_iter().flat_map(|first| required_of(first)).any(|name| {
        let mut owners = HashMap::new();
        groups.iter().enumerate().all(|(idx, group)| {
            group.iter().all(|object| {
                tags(object, name, definitions, looks).is_some_and(|tags| {
                    tags.into_iter().all(|tag| *owners.entry(tag).or_insert(idx) == idx)
                })
            })
        })
    })
}

/// The schema of a branch, found through references that stand alone.
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

/// The values that the member `name` of an object may have. None = the member may be absent or have
/// other values, or no look is left.
fn tags<'a>(
    object: &'a Map<String, Value>,
    name: &str,
    definitions: &'a Map<String, Value>,
    looks: &mut usize,
) -> Option<Vec<Tag<'a>>> {
    spend(looks, 1)?;
    if object.get("type")? != "object" {
        return None;
    }
    let member = resolved(object.get("properties")?.get(name)?, definitions)?;
    let tags = tags_of(member)?;
    spend(looks, tags.len())?;
    let required = object.get("required")?.as_array()?;
    spend(looks, required.len())?;
    required.iter().any(|known| known == name).then_some(tags)
}

/// Takes `count` looks. None = fewer were left; then no look is left.
fn spend(looks: &mut usize, count: usize) -> Option<()> {
    let left = looks.checked_sub(count);
    *looks = left.unwrap_or(0);
    left.map(|_| ())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::Walk;

    /// Lists that refer to lists have no other bound.
    #[test]
    fn references_that_branch_are_looked_at_once() {
        let list = |idx: usize| {
            let reference = json!({"$ref": format!("#/$defs/r{}", idx + 1)});
            json!({"oneOf": vec![reference; 100]})
        };
        let mut definitions: serde_json::Map<_, _> =
            (0..12).map(|idx| (format!("r{idx}"), list(idx))).collect();
        definitions.insert("r12".to_string(), json!({"type": "object"}));
        let mut walk = Walk::new(&definitions, 1_000);
        walk.rewrite(&mut json!({"oneOf": [{"$ref": "#/$defs/r0"}, {"type": "null"}]}));
        assert!(walk.overlaps.is_empty());
        let closed = json!({"type": "object", super::NARROWED: true});
        definitions.insert("r12".to_string(), closed);
        let mut walk = Walk::new(&definitions, 1_000);
        walk.rewrite(&mut json!({"oneOf": [{"$ref": "#/$defs/r0"}, {"type": "object"}]}));
        assert_eq!(walk.overlaps, ["#/oneOf"]);
    }

    /// Many lists may refer to one branch of many names.
    #[test]
    fn lists_beyond_the_limit_of_looks_stay_one_of() {
        let names: Vec<String> = (0..100).map(|i| format!("m{i}")).collect();
        let branch = |tag: &str| {
            let members = json!({"m99": {"const": tag}});
            json!({"type": "object", "required": names, "properties": members})
        };
        let definitions = json!({"a": branch("a"), "b": branch("b")});
        let list = json!({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}]});
        let mut schema = json!({"allOf": [list.clone(), list]});
        let definitions = definitions.as_object().unwrap();
        let mut walk = Walk::new(definitions, 400); // a list takes about 300
        walk.rewrite(&mut schema);
        assert!(schema.pointer("/allOf/0/anyOf").is_some());
        assert!(schema.pointer("/allOf/1/oneOf").is_some());
        assert_eq!(walk.looks, 0);
    }
}
