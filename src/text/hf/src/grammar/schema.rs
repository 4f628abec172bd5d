//! Turns a client's JSON Schema into one that llguidance enforces. Every keyword's form is checked
//! at its place, annotations go, and references are resolved. A keyword that cannot be enforced is
//! refused (strict) or dropped and listed (loose).

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::arrange::{gather, hold_integers_to_steps};
use super::bounds::close_whole_bounds;
use super::compile::Limits;
use super::endless;
use super::names::{close_to, names_of, Names, MAX_COPIED_BYTES};
use super::one_of;
use super::places::{add_anchors, escaped, find, name_of_definition, refuse_ref_cycles};
use super::regex::Dialect;
use crate::{budget, Failure};

/// Whether a keyword that cannot be enforced is refused or listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strictness {
    Strict,
    Loose,
}

/// A schema whose references all read "#/$defs/rN".
#[derive(Clone)]
pub struct Checked {
    pub schema: Value,
    /// Places of the keywords that were dropped.
    pub ignored: Vec<String>,
    /// The place in the source of each definition.
    pub places: Vec<String>,
    /// Whether blanks may stand between JSON tokens.
    pub blanks: Blanks,
    /// Patterns of members' names that this schema has.
    pub num_patterns: usize,
}

/// The blanks between the JSON tokens of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blanks {
    Bounded,
    None,
}

/// Whether an object may have members that its schema does not declare. Schemas that hold for one
/// value together (`allOf`, `$ref` beside other keywords) are parts: each part leaves room for the
/// members of the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Role {
    Whole,
    Part,
}

/// A schema that a reference leads to.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Target {
    place: String,
    role: Role,
}

const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];
/// Keywords that say nothing about what is valid. OpenAPI's `discriminator` is one: the branches
/// beside it decide (OpenAPI 3.1.1, 4.8.25).
const ANNOTATIONS: [&str; 17] = [
    "$schema",
    "$id",
    "id",
    "$anchor",
    "$comment",
    "$vocabulary",
    "title",
    "description",
    "default",
    "examples",
    "example",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentMediaType",
    "contentEncoding",
    "discriminator",
];
/// The formats that llguidance has.
const FORMATS: [&str; 10] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri"];
/// A step's automaton has as many states as its digits say; 1,000,003 took 10 s to build.
const MAX_STEP_DIGITS: u64 = 1_000;
/// derivre computes remainders in 32 bits, so 10 * divisor + 9 * 10^decimals stays below 2^32.
const MAX_STEP_DECIMALS: usize = 8;
const MAX_STEP_DIVISOR: u64 = 300_000_000;
/// Patterns of members' names in one grammar. llguidance compares each pair of an object's patterns
/// (200 patterns take 0.4 s, 400 take 5 s), and no limit ends that work.
pub const MAX_PATTERNS: usize = 200;
/// Doubles hold every integer up to here; llguidance keeps numbers as doubles.
const MAX_EXACT_INTEGER: u64 = 1 << 53;

pub fn check(source: &Value, strictness: Strictness, limits: &Limits) -> Result<Checked, Failure> {
    check_as(Role::Whole, source, strictness, limits)
}

/// `check` where objects may have any other members, as in the standard.
pub fn check_open(
    source: &Value,
    strictness: Strictness,
    limits: &Limits,
) -> Result<Checked, Failure> {
    check_as(Role::Part, source, strictness, limits)
}

fn check_as(
    role: Role,
    source: &Value,
    strictness: Strictness,
    limits: &Limits,
) -> Result<Checked, Failure> {
    let mut checker = Checker {
        source,
        strictness,
        limits,
        ignored: Vec::new(),
        num_enum_values: 0,
        enum_places: HashSet::new(),
        num_patterns: 0,
        targets: Vec::new(),
        target_idx: HashMap::new(),
        num_target_places: 0,
        anchors: None,
        name_bytes_left: MAX_COPIED_BYTES,
        joint_step: combines(source).then_some(Step { divisor: 1, decimals: MAX_STEP_DECIMALS }),
    };
    let mut schema = checker.schema(source, "#", 0, role)?;
    let mut definitions = Map::new();
    while definitions.len() < checker.targets.len() {
        let idx = definitions.len();
        let Target { place, role } = checker.targets[idx].clone();
        let target = find(source, &place).expect("found when the reference was read");
        let definition = checker.schema(target, &place, 0, role)?;
        definitions.insert(name_of_definition(idx), definition);
    }
    let Checker { mut ignored, targets, num_patterns, .. } = checker;
    let mut seen = HashSet::new();
    ignored.retain(|place| seen.insert(place.clone())); // a definition may be checked twice
    let places: Vec<String> = targets.into_iter().map(|target| target.place).collect();
    refuse_ref_cycles(&definitions, &places)?;
    endless::prune(&mut schema, &mut definitions, &places)?;
    let overlapping = one_of::settle(&mut schema, &mut definitions, &places);
    if let Some(place) = overlapping.first().filter(|_| strictness == Strictness::Strict) {
        return Err(Failure::invalid(format!("{place}: {}", one_of::OVERLAP)));
    }
    ignored.extend(overlapping);
    if !definitions.is_empty() {
        if let Value::Object(members) = &mut schema {
            members.insert("$defs".to_string(), Value::Object(definitions));
        }
    }
    Ok(Checked { schema, ignored, places, blanks: blanks_of(source), num_patterns })
}

/// `count`: of a grammar so far, the schema at `place` included.
pub fn check_patterns(count: usize, place: &str) -> Result<(), Failure> {
    match count {
        0..=MAX_PATTERNS => Ok(()),
        _ => Err(Failure::limit(format!(
            "{place}: more than {MAX_PATTERNS} patterns in all patternProperties"
        ))),
    }
}

/// Reads `"x-guidance": {"whitespace_flexible": false}`, llguidance's own keyword. A client may set
/// no other option of it.
fn blanks_of(source: &Value) -> Blanks {
    match source.pointer("/x-guidance/whitespace_flexible") {
        Some(Value::Bool(false)) => Blanks::None,
        _ => Blanks::Bounded,
    }
}

pub struct Checker<'a> {
    source: &'a Value,
    pub strictness: Strictness,
    limits: &'a Limits,
    pub ignored: Vec<String>,
    num_enum_values: usize,
    /// Places whose values are counted.
    enum_places: HashSet<String>,
    num_patterns: usize,
    targets: Vec<Target>,
    /// Each target's place in `targets`.
    target_idx: HashMap<Target, usize>,
    /// Different places of the targets.
    num_target_places: usize,
    /// The places of the schemas with an `$anchor`; none = not looked for yet.
    anchors: Option<HashMap<&'a str, String>>,
    /// Bytes of listed names that may still be copied.
    name_bytes_left: usize,
    /// The least common multiple of all steps so far, where schemas are combined; else none.
    joint_step: Option<Step>,
}

impl Checker<'_> {
    /// The enforced form of the schema at `place`.
    fn schema(
        &mut self,
        schema: &Value,
        place: &str,
        depth: usize,
        role: Role,
    ) -> Result<Value, Failure> {
        if depth > self.limits.max_depth {
            return Err(Failure::limit(format!(
                "{place}: nested deeper than {} schemas",
                self.limits.max_depth
            )));
        }
        if budget::is_abandoned() {
            return Err(Failure::limit("nobody waits for the schema any more"));
        }
        let members = match schema {
            Value::Bool(_) => return Ok(schema.clone()),
            Value::Object(members) => members,
            _ => return Err(wrong(place, "a schema (an object, true or false)", schema)),
        };
        if members.get("not").is_some_and(takes_all) {
            return Ok(Value::Bool(false)); // the `never` of TypeScript and zod
        }
        let role = if joins_others(members) { Role::Part } else { role };
        let mut out = Map::new();
        let closes = closes_alone(members);
        let names = if self.name_bytes_left > 0 { names_of(members, self.source) } else { None };
        let names = names.and_then(|names| match names {
            Names::Pattern(pattern) => parse_pattern(&pattern).ok().map(Names::Pattern),
            Names::Listed(_) => Some(names),
        });
        for (key, value) in members {
            let is_read = (closes && key == "unevaluatedProperties")
                || (names.is_some() && key == "propertyNames");
            if is_read || says_nothing(key, value) {
                continue;
            }
            let place = format!("{place}/{}", escaped(key));
            if members.contains_key("prefixItems") && !self.fits_prefixes(key, value, &place)? {
                continue;
            }
            if let Some(value) = self.keyword(key, value, &place, depth, role)? {
                out.insert(key.clone(), value);
            }
        }
        let is_closed_now = closes && !members.contains_key("additionalProperties");
        let is_narrowed = role == Role::Whole && is_closed(members);
        if is_closed_now || is_narrowed {
            out.insert("additionalProperties".to_string(), Value::Bool(false));
        }
        if is_narrowed && !is_closed_now {
            out.insert(one_of::NARROWED.to_string(), Value::Bool(true));
        }
        if names.is_some_and(|names| !close_to(&names, &mut out, &mut self.name_bytes_left)) {
            self.unsupported(&format!("{place}/propertyNames"), "the names are too many")?;
        }
        close_whole_bounds(&mut out);
        hold_integers_to_steps(&mut out);
        self.keep_counts_that_hold(&mut out, place)?;
        Ok(Value::Object(gather(out)))
    }

    /// Whether a keyword means something beside `prefixItems`. Drafts with a list of `items` and
    /// `additionalItems` have no `prefixItems`.
    fn fits_prefixes(&mut self, key: &str, value: &Value, place: &str) -> Result<bool, Failure> {
        match key {
            "items" if value.is_array() => Err(wrong(place, "a schema beside prefixItems", value)),
            "additionalItems" => {
                self.unsupported(place, "beside prefixItems it says nothing; use items")?;
                Ok(false)
            }
            _ => Ok(true),
        }
    }

    /// The enforced form of a keyword's value; none when the keyword goes.
    fn keyword(
        &mut self,
        key: &str,
        value: &Value,
        place: &str,
        depth: usize,
        role: Role,
    ) -> Result<Option<Value>, Failure> {
        match key {
            "$defs" | "definitions" => {
                value.as_object().ok_or_else(|| wrong(place, "an object of schemas", value))?;
                Ok(None) // those that are referred to come back by their places
            }
            "properties" | "patternProperties" => {
                self.schemas_by_name(key, value, place, depth, role)
            }
            "items" if value.is_array() => self.list_of_schemas(value, place, depth, role),
            "items" | "additionalItems" | "additionalProperties" => {
                self.schema(value, place, depth + 1, role).map(Some)
            }
            "prefixItems" | "anyOf" | "allOf" | "oneOf" => {
                self.list_of_schemas(value, place, depth, role)
            }
            "$ref" => self.reference(value, place, role),
            "type" => types(value, place),
            "enum" | "const" => self.constants(key, value, place),
            "required" => names(value, place),
            "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties"
            | "maxProperties" => count(value, place).map(Some),
            "minimum" | "maximum" => number(value, place).map(Some),
            "exclusiveMinimum" | "exclusiveMaximum" if value.is_boolean() => {
                Ok(Some(value.clone()))
            }
            "exclusiveMinimum" | "exclusiveMaximum" => number(value, place).map(Some),
            "multipleOf" => self.step(value, place),
            "pattern" => self.pattern(value, place),
            "format" => self.format(value, place),
            _ if ANNOTATIONS.contains(&key) || key.starts_with("x-") => Ok(None),
            _ => self.unsupported(place, "the keyword is not supported"),
        }
    }

    pub fn unsupported(&mut self, place: &str, why: &str) -> Result<Option<Value>, Failure> {
        if self.strictness == Strictness::Strict {
            return Err(Failure::invalid(format!("{place}: {why}")));
        }
        self.ignored.push(place.to_string());
        Ok(None)
    }

    fn schemas_by_name(
        &mut self,
        key: &str,
        value: &Value,
        place: &str,
        depth: usize,
        role: Role,
    ) -> Result<Option<Value>, Failure> {
        let members =
            value.as_object().ok_or_else(|| wrong(place, "an object of schemas", value))?;
        if key == "patternProperties" {
            self.num_patterns += members.len();
            check_patterns(self.num_patterns, place)?;
        }
        let mut out = Map::new();
        for (name, schema) in members {
            let place = format!("{place}/{}", escaped(name));
            let name = match key {
                "patternProperties" => parse_pattern(name),
                _ => Ok(name.clone()),
            };
            let name = name.and_then(|name| match out.contains_key(&name) {
                true => Err("another pattern says the same".to_string()),
                false => Ok(name),
            });
            match name {
                Ok(name) => {
                    out.insert(name, self.schema(schema, &place, depth + 1, role)?);
                }
                Err(why) => {
                    self.unsupported(&place, &why)?;
                }
            }
        }
        Ok(Some(Value::Object(out)))
    }

    fn list_of_schemas(
        &mut self,
        value: &Value,
        place: &str,
        depth: usize,
        role: Role,
    ) -> Result<Option<Value>, Failure> {
        let Some(items) = value.as_array().filter(|items| !items.is_empty()) else {
            return Err(wrong(place, "a list of one schema or more", value));
        };
        let mut out = Vec::with_capacity(items.len());
        for (i, item) in items.iter().enumerate() {
            out.push(self.schema(item, &format!("{place}/{i}"), depth + 1, role)?);
        }
        Ok(Some(Value::Array(out)))
    }

    fn reference(
        &mut self,
        value: &Value,
        place: &str,
        role: Role,
    ) -> Result<Option<Value>, Failure> {
        let target = value.as_str().ok_or_else(|| wrong(place, "a text", value))?;
        let Some(fragment) = target.strip_prefix('#') else {
            return Err(Failure::invalid(format!(
                "{place}: {target:?} is outside of the schema; only '#...' is looked up"
            )));
        };
        let target = match fragment {
            "" | "/" => Some("#".to_string()),
            _ if fragment.starts_with('/') => find(self.source, target).map(|_| target.to_string()),
            name => self.place_of_anchor(name),
        };
        let Some(target) = target else {
            return Err(Failure::invalid(format!("{place}: the schema has no {value}")));
        };
        let idx = self.idx_of(Target { place: target, role });
        if self.num_target_places > self.limits.max_refs {
            return Err(Failure::limit(format!(
                "{place}: more than {} targets of $ref",
                self.limits.max_refs
            )));
        }
        Ok(Some(Value::String(format!("#/$defs/{}", name_of_definition(idx)))))
    }

    /// The number of a target, which is new or was referred to before.
    fn idx_of(&mut self, target: Target) -> usize {
        if let Some(idx) = self.target_idx.get(&target) {
            return *idx;
        }
        let other_role = if target.role == Role::Whole { Role::Part } else { Role::Whole };
        let other = Target { role: other_role, place: target.place.clone() };
        self.num_target_places += usize::from(!self.target_idx.contains_key(&other));
        self.target_idx.insert(target.clone(), self.targets.len());
        self.targets.push(target);
        self.targets.len() - 1
    }

    /// All anchors are read at the first of them: as many references may name one.
    fn place_of_anchor(&mut self, name: &str) -> Option<String> {
        let source = self.source;
        let anchors = self.anchors.get_or_insert_with(|| {
            let mut all = HashMap::new();
            add_anchors(source, "#", &mut all);
            all
        });
        anchors.get(name).cloned()
    }

    fn constants(
        &mut self,
        key: &str,
        value: &Value,
        place: &str,
    ) -> Result<Option<Value>, Failure> {
        let values = match value {
            Value::Array(values) if key == "enum" && !values.is_empty() => values.as_slice(),
            _ if key == "enum" => return Err(wrong(place, "a list of one value or more", value)),
            _ => std::slice::from_ref(value),
        };
        if self.enum_places.insert(place.to_string()) {
            self.num_enum_values += values.len();
        }
        if self.num_enum_values > self.limits.max_enum_values {
            return Err(Failure::limit(format!(
                "{place}: more than {} values in all enums",
                self.limits.max_enum_values
            )));
        }
        if let Some(number) = values.iter().find_map(inexact_integer) {
            return self.unsupported(
                place,
                &format!("the integer {number} is beyond +-2^53 and cannot be kept exactly"),
            );
        }
        Ok(Some(value.clone()))
    }

    fn step(&mut self, value: &Value, place: &str) -> Result<Option<Value>, Failure> {
        let Some(number) = value.as_f64().filter(|number| *number > 0.0) else {
            return Err(wrong(place, "a number above 0", value));
        };
        let Some(step) = Step::of(number) else {
            return self.unsupported(
                place,
                &format!(
                    "{value} is not supported: without its point and the zeros at its ends it is \
                     above {MAX_STEP_DIGITS}, or it has more than {MAX_STEP_DECIMALS} decimals, or \
                     without its point it is above {MAX_STEP_DIVISOR}"
                ),
            );
        };
        let Some(joint) = self.joint_step else { return Ok(Some(value.clone())) };
        let Some(joint) = joint.joined(step) else {
            return self.unsupported(
                place,
                &format!(
                    "{value} is not supported beside the other steps of a schema with allOf, $ref, \
                     anyOf, oneOf or patternProperties: their least common multiple has more than \
                     {MAX_STEP_DIGITS} as its digits"
                ),
            );
        };
        self.joint_step = Some(joint);
        Ok(Some(value.clone()))
    }

    fn pattern(&mut self, value: &Value, place: &str) -> Result<Option<Value>, Failure> {
        let pattern = value.as_str().ok_or_else(|| wrong(place, "a text", value))?;
        match parse_pattern(pattern) {
            Ok(pattern) => Ok(Some(Value::String(pattern))),
            Err(why) => self.unsupported(place, &why),
        }
    }

    fn format(&mut self, value: &Value, place: &str) -> Result<Option<Value>, Failure> {
        let name = value.as_str().ok_or_else(|| wrong(place, "a text", value))?;
        if FORMATS.contains(&name) {
            return Ok(Some(value.clone()));
        }
        self.unsupported(place, &format!("the format {name:?} is not supported"))
    }
}

/// Whether every value satisfies the schema, by its form.
fn takes_all(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => members.keys().all(|key| is_silent(key)),
        schema => schema == &Value::Bool(true),
    }
}

/// Whether the keyword says nothing about what is valid by itself.
pub fn is_silent(key: &str) -> bool {
    ANNOTATIONS.contains(&key) || key.starts_with("x-") || matches!(key, "$defs" | "definitions")
}

/// Whether a keyword that is not supported says nothing by its value.
fn says_nothing(key: &str, value: &Value) -> bool {
    let is_false = value == &Value::Bool(false);
    let is_of_texts = |schema: &Value| match schema {
        Value::Object(members) => members
            .iter()
            .all(|(key, value)| is_silent(key) || (key == "type" && value == "string")),
        _ => false,
    };
    let all_members = |is_empty: &dyn Fn(&Value) -> bool| {
        value.as_object().is_some_and(|members| members.values().all(is_empty))
    };
    let is_empty_list = |value: &Value| value.as_array().is_some_and(Vec::is_empty);
    match key {
        "uniqueItems" | "not" => is_false,
        "unevaluatedProperties" | "unevaluatedItems" => takes_all(value),
        "propertyNames" => takes_all(value) || is_of_texts(value), // names are texts
        "dependentRequired" => all_members(&is_empty_list),
        "dependentSchemas" => all_members(&takes_all),
        _ => false,
    }
}

/// Whether `unevaluatedProperties: false` concerns no other keywords than `additionalProperties`
/// does: no schema beside them looks at members.
fn closes_alone(members: &Map<String, Value>) -> bool {
    const APPLICATORS: [&str; 11] = [
        "$ref",
        "$dynamicRef",
        "allOf",
        "anyOf",
        "oneOf",
        "not",
        "if",
        "then",
        "else",
        "dependentSchemas",
        "dependencies",
    ];
    members.get("unevaluatedProperties") == Some(&Value::Bool(false))
        && !APPLICATORS.iter().any(|key| members.contains_key(*key))
}

/// Whether several schemas may hold for one value here: branches or a reference beside other
/// keywords that concern members, or patterns beside names. An `allOf` of one schema, and `anyOf`,
/// `oneOf` or `$ref` with nothing of the kind beside it, is that schema alone.
fn joins_others(members: &Map<String, Value>) -> bool {
    const OF_MEMBERS: [&str; 9] = [
        "properties",
        "required",
        "minProperties",
        "maxProperties",
        "items",
        "prefixItems",
        "additionalItems",
        "enum",
        "const",
    ];
    let joins = |key: &str| matches!(key, "allOf" | "anyOf" | "oneOf" | "$ref");
    if members.get("allOf").and_then(Value::as_array).is_some_and(|parts| parts.len() > 1) {
        return true;
    }
    if members.contains_key("properties") && members.contains_key("patternProperties") {
        return true;
    }
    let concerns = |key: &str, value: &Value| OF_MEMBERS.contains(&key) || opens(key, value);
    let num_keywords = members.iter().filter(|(key, value)| concerns(key, value)).count();
    num_keywords > 1 && members.keys().any(|key| joins(key))
}

/// Whether a keyword beside `properties` lets other members in, or says itself which.
fn opens(key: &str, value: &Value) -> bool {
    const OPENERS: [&str; 14] = [
        "additionalProperties",
        "patternProperties",
        "propertyNames",
        "dependencies",
        "dependentSchemas",
        "dependentRequired",
        "$ref",
        "allOf",
        "anyOf",
        "oneOf",
        "if",
        "then",
        "else",
        "not",
    ];
    OPENERS.contains(&key) || (key == "unevaluatedProperties" && value != &Value::Bool(false))
}

/// Whether an object of this schema has the declared properties alone: `properties` stands here,
/// and nothing here lets others in. (The standard would let any in. A small model then writes
/// members without end.)
fn is_closed(members: &Map<String, Value>) -> bool {
    let Some(Value::Object(declared)) = members.get("properties") else { return false };
    if members.iter().any(|(key, value)| opens(key, value)) {
        return false;
    }
    let required = members.get("required").and_then(Value::as_array);
    let is_declared = |name: &Value| name.as_str().is_some_and(|name| declared.contains_key(name));
    let num_fewest = members.get("minProperties").and_then(Value::as_f64).unwrap_or(0.0);
    required.is_none_or(|names| names.iter().all(is_declared))
        && num_fewest <= declared.len() as f64
}

/// The error of a value that has another form than the keyword asks for.
fn wrong(place: &str, wanted: &str, value: &Value) -> Failure {
    let mut shown = value.to_string();
    if shown.len() > 60 {
        let cut = (0..=60).rev().find(|i| shown.is_char_boundary(*i));
        shown.truncate(cut.unwrap_or(0));
        shown.push_str("...");
    }
    Failure::invalid(format!("{place}: must be {wanted}, got {shown}"))
}

fn types(value: &Value, place: &str) -> Result<Option<Value>, Failure> {
    let known = |v: &Value| v.as_str().is_some_and(|name| TYPES.contains(&name));
    let fits = match value {
        Value::Array(names) => !names.is_empty() && names.iter().all(known),
        name => known(name),
    };
    if !fits {
        return Err(wrong(place, &format!("one of {} or a list of them", TYPES.join(", ")), value));
    }
    Ok(Some(value.clone()))
}

fn names(value: &Value, place: &str) -> Result<Option<Value>, Failure> {
    match value {
        Value::Array(names) if names.iter().all(Value::is_string) => Ok(Some(value.clone())),
        _ => Err(wrong(place, "a list of names", value)),
    }
}

/// A count, which may be written as 2.0.
fn count(value: &Value, place: &str) -> Result<Value, Failure> {
    if value.is_u64() {
        return Ok(value.clone());
    }
    match value.as_f64() {
        Some(n) if n >= 0.0 && n.fract() == 0.0 && n <= MAX_EXACT_INTEGER as f64 => {
            Ok(Value::from(n as u64))
        }
        _ => Err(wrong(place, "an integer of 0 or more", value)),
    }
}

fn number(value: &Value, place: &str) -> Result<Value, Failure> {
    if value.is_number() {
        return Ok(value.clone());
    }
    Err(wrong(place, "a number", value))
}

/// A step of numbers: divisor * 10^-decimals.
#[derive(Clone, Copy)]
pub struct Step {
    divisor: u64,
    decimals: usize,
}

impl Step {
    /// The step of a positive number; none where it is too large for an automaton.
    pub fn of(number: f64) -> Option<Step> {
        let text = format!("{number}");
        let decimals = text.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let divisor = text.replace('.', "").parse().ok()?;
        Step { divisor, decimals }.checked()
    }

    /// The step of the numbers that are multiples of both; none where it is too large.
    pub fn joined(self, other: Step) -> Option<Step> {
        let decimals = self.decimals.max(other.decimals);
        let scaled =
            |step: Step| u128::from(step.divisor) * 10u128.pow((decimals - step.decimals) as u32);
        let (a, b) = (scaled(self), scaled(other));
        let divisor = u64::try_from(a / greatest_divisor(a, b) * b).ok()?;
        Step { divisor, decimals }.checked()
    }

    /// The step of numbers that are integers too, as a number.
    pub fn of_integers(self) -> Option<f64> {
        let whole = self.joined(Step { divisor: 1, decimals: 0 })?;
        Some(whole.divisor as f64)
    }

    fn checked(mut self) -> Option<Step> {
        while self.decimals > 0 && self.divisor % 10 == 0 {
            self.divisor /= 10;
            self.decimals -= 1;
        }
        let mut digits = self.divisor;
        while digits > 0 && digits % 10 == 0 {
            digits /= 10;
        }
        let fits = digits <= MAX_STEP_DIGITS
            && self.divisor <= MAX_STEP_DIVISOR
            && self.decimals <= MAX_STEP_DECIMALS;
        fits.then_some(self)
    }
}

fn greatest_divisor(a: u128, b: u128) -> u128 {
    if b == 0 {
        a
    } else {
        greatest_divisor(b, a % b)
    }
}

/// Whether two schemas in `source` may hold for one value: llguidance then joins their steps.
fn combines(source: &Value) -> bool {
    match source {
        Value::Object(members) => {
            let num_keywords = members.keys().filter(|key| !is_silent(key)).count();
            let has = |key: &str| members.contains_key(key);
            let joins = has("$ref") || has("anyOf") || has("oneOf");
            has("allOf")
                || has("patternProperties")
                || (joins && num_keywords > 1)
                || members.values().any(combines)
        }
        Value::Array(items) => items.iter().any(combines),
        _ => false,
    }
}

/// The first integer in `value` that a double cannot hold.
fn inexact_integer(value: &Value) -> Option<String> {
    match value {
        Value::Number(n) => {
            let size = n.as_u64().or_else(|| n.as_i64().map(i64::unsigned_abs));
            size.filter(|size| *size > MAX_EXACT_INTEGER).map(|_| n.to_string())
        }
        Value::Array(items) => items.iter().find_map(inexact_integer),
        Value::Object(members) => members.values().find_map(inexact_integer),
        _ => None,
    }
}

/// The pattern in llguidance's form.
fn parse_pattern(pattern: &str) -> Result<String, String> {
    super::regex::checked(pattern, Dialect::Ecma)
        .map_err(|reason| format!("the pattern is not supported: {reason}"))
}
