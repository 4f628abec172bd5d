//! Structural tags: free text in which each trigger begins a tag whose content follows a schema.
//! The form is vLLM's older {"type": "structural_tag", "structures": [{"begin", "schema", "end"}],
//! "triggers": [...]}; the result is a grammar in Lark. The newer form is in formats.rs. The free
//! text holds none of the texts of "excludes".
//!
//! With "at_least_one" the answer is tags alone: at least one, at most "max_tags" of them, with the
//! text "separator" between two. Triggers may then be absent. A structure with the "content"
//! "qwen_xml" has the schema's properties as `<parameter=NAME>`, a line of the value and
//! `</parameter>`. A value is JSON. A plain text (`text_branch`) stands as it is;
//! api/tool_shapes.cc has the same rule for the reader of the answer.

use std::collections::HashSet;
use std::fmt::Write;
use std::rc::Rc;

use serde_json::{Map, Value};

use super::compile::{with_options, Limits};
use super::formats;
use super::json_text;
use super::places::{escaped, required_of, type_names};
use super::schema::{self, check_patterns, Checked, Strictness};
use crate::Failure;

const MAX_STRUCTURES: usize = 1024;
const MAX_TAGS: u64 = 1000;
/// Bytes of all rules. Texts and definitions are written again in each rule that needs them, and a
/// compilation past its memory would hold that memory for ever.
const MAX_RULE_BYTES: usize = 8 << 20;
/// The end of a parameter, after its value.
const END_OF_VALUE: &str = "\n</parameter>\n";

/// A schema of a tag that may be compiled by itself.
pub struct Content {
    pub place: String,
    whole: Rc<Checked>,
    /// A property of the schema; none = the whole of it.
    property: Option<String>,
}

impl Content {
    pub fn whole(&self) -> &Checked {
        &self.whole
    }

    /// The schema with the definitions to which it refers.
    pub fn checked(&self) -> Checked {
        let whole = &*self.whole;
        let Some(name) = &self.property else { return whole.clone() };
        let mut schema = whole.schema["properties"][name].clone();
        if let (Value::Object(members), Some(all)) = (&mut schema, whole.schema.get("$defs")) {
            members.insert("$defs".to_string(), all.clone());
        }
        Checked { schema, ignored: Vec::new(), places: whole.places.clone(), ..*whole }
    }
}

/// A grammar, and the places of the schemas' keywords that it does not enforce.
#[derive(Default)]
pub struct Structural {
    /// The rules so far; `begin` makes a grammar of them.
    pub lark: String,
    pub ignored: Vec<String>,
    pub schemas: Vec<Content>,
    /// Schemas of properties that stand in tags of their own.
    pub properties: Vec<Content>,
    num_patterns: usize,
}

/// One kind of tag.
struct Structure<'a> {
    begin: &'a str,
    end: &'a str,
    schema: &'a Value,
    is_xml: bool,
}

/// The members beside structures and triggers.
struct Rules<'a> {
    /// The answer is this many tags at most, and no text; none = free text with tags in it.
    max_tags: Option<u64>,
    separator: &'a str,
}

pub fn invalid(place: &str, what: &str) -> Failure {
    Failure::invalid(format!("the structural tag: {place}: {what}"))
}

pub fn check_rules(num_bytes: usize, place: &str) -> Result<(), Failure> {
    if num_bytes <= MAX_RULE_BYTES {
        return Ok(());
    }
    Err(Failure::limit(format!(
        "the structural tag: {place}: its rules take more than {MAX_RULE_BYTES} bytes, since each \
         repeats the texts and definitions that it needs"
    )))
}

pub fn members_of<'a>(
    value: &'a Value,
    place: &str,
    known: &[&str],
) -> Result<&'a Map<String, Value>, Failure> {
    let members = value.as_object().ok_or_else(|| invalid(place, "must be an object"))?;
    match members.keys().find(|key| !known.contains(&key.as_str())) {
        Some(key) => Err(invalid(&format!("{place}/{key}"), "is not supported")),
        None => Ok(members),
    }
}

/// A list that is not empty, of the object at `place`.
pub fn list_at<'a>(
    members: &'a Map<String, Value>,
    key: &str,
    place: &str,
) -> Result<&'a [Value], Failure> {
    let list = members.get(key).and_then(Value::as_array).map(Vec::as_slice);
    match list {
        Some(list) if (1..=MAX_STRUCTURES).contains(&list.len()) => Ok(list),
        _ => Err(invalid(
            &format!("{place}/{key}"),
            &format!("must be a list of 1 to {MAX_STRUCTURES} elements"),
        )),
    }
}

pub fn any_text_of<'a>(value: Option<&'a Value>, place: &str) -> Result<&'a str, Failure> {
    value.and_then(Value::as_str).ok_or_else(|| invalid(place, "must be a text"))
}

pub fn text_of<'a>(value: Option<&'a Value>, place: &str) -> Result<&'a str, Failure> {
    let text = value.and_then(Value::as_str).filter(|text| !text.is_empty());
    text.ok_or_else(|| invalid(place, "must be a text that is not empty"))
}

pub fn member_at<'a>(
    members: &'a Map<String, Value>,
    key: &str,
    place: &str,
) -> Result<&'a Value, Failure> {
    members.get(key).ok_or_else(|| invalid(&format!("{place}/{key}"), "is missing"))
}

pub fn flag_at(members: &Map<String, Value>, key: &str, place: &str) -> Result<bool, Failure> {
    match members.get(key) {
        None => Ok(false),
        Some(flag) => flag
            .as_bool()
            .ok_or_else(|| invalid(&format!("{place}/{key}"), "must be true or false")),
    }
}

fn structure_of<'a>(value: &'a Value, place: &str) -> Result<Structure<'a>, Failure> {
    let members = members_of(value, place, &["begin", "schema", "end", "content"])?;
    let content = members.get("content");
    if content.is_some_and(|name| name != "qwen_xml") {
        return Err(invalid(&format!("{place}/content"), "must be \"qwen_xml\""));
    }
    Ok(Structure {
        is_xml: content.is_some(),
        begin: text_of(members.get("begin"), &format!("{place}/begin"))?,
        end: text_of(members.get("end"), &format!("{place}/end"))?,
        schema: member_at(members, "schema", place)?,
    })
}

/// A list of texts that are not empty; none where it is absent.
pub fn texts_at<'a>(
    members: &'a Map<String, Value>,
    key: &str,
    place: &str,
) -> Result<Vec<&'a str>, Failure> {
    if members.get(key).and_then(Value::as_array).is_none_or(Vec::is_empty) {
        return match members.get(key) {
            None | Some(Value::Array(_)) => Ok(Vec::new()),
            _ => Err(invalid(&format!("{place}/{key}"), "must be a list of texts")),
        };
    }
    let list = list_at(members, key, place)?.iter().enumerate();
    list.map(|(i, text)| text_of(Some(text), &format!("{place}/{key}/{i}"))).collect()
}

/// A text as a literal of Lark.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn rules_of(members: &Map<String, Value>) -> Result<Rules<'_>, Failure> {
    let is_forced = flag_at(members, "at_least_one", "#")?;
    let max_tags = match members.get("max_tags") {
        None => MAX_TAGS,
        Some(count) => count
            .as_u64()
            .filter(|count| (1..=MAX_TAGS).contains(count))
            .ok_or_else(|| invalid("#/max_tags", &format!("must be 1 to {MAX_TAGS}")))?,
    };
    let separator = match members.get("separator") {
        None => "\n",
        some => text_of(some, "#/separator")?,
    };
    Ok(Rules { max_tags: is_forced.then_some(max_tags), separator })
}

impl Structural {
    /// Adds the schema at `place` as rules named after `name`. `is_xml`: its properties stand in
    /// tags of their own.
    pub fn add_content(
        &mut self,
        (source, is_xml): (&Value, bool),
        place: &str,
        name: &str,
        limits: &Limits,
    ) -> Result<(), Failure> {
        let within = |text: &str| text.replacen('#', place, 1);
        let checked = schema::check(source, Strictness::Loose, limits)
            .map_err(|f| Failure::new(f.code, within(&f.message)))?;
        self.ignored.extend(checked.ignored.iter().map(|at| within(at)));
        self.num_patterns += checked.num_patterns;
        check_patterns(self.num_patterns, place)?;
        let whole = Rc::new(checked);
        if is_xml {
            if let Some(key) = beyond_parameters(source) {
                let why = "parameters in tags cannot say it";
                return Err(Failure::invalid(format!("{place}/{key}: {why}")));
            }
            self.add_parameters(source, &whole, name, place)?;
        } else {
            let schema = with_options(whole.schema.clone(), Strictness::Loose, whole.blanks);
            let _ = writeln!(self.lark, "{name}: %json {schema}");
        }
        self.schemas.push(Content { place: place.to_string(), whole, property: None });
        Ok(())
    }

    /// The properties of an object as tags, in their own order.
    fn add_parameters(
        &mut self,
        source: &Value,
        whole: &Rc<Checked>,
        name: &str,
        place: &str,
    ) -> Result<(), Failure> {
        let schema = &whole.schema;
        let definition_bytes = schema.get("$defs").map_or(0, |all| all.to_string().len());
        let empty = Map::new();
        let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
        let required: HashSet<&str> =
            schema.as_object().into_iter().flat_map(required_of).collect();
        let mut parts = Vec::new();
        for (i, (key, value)) in properties.iter().enumerate() {
            let is_required = required.contains(key.as_str());
            if value == &Value::Bool(false) && !is_required {
                continue; // no call has it
            }
            let part = format!("{name}p{i}");
            let begin = quoted(&format!("<parameter={key}>\n"));
            let of_source = source.get("properties").and_then(|all| all.get(key));
            let rest = match of_source.and_then(|source| text_branch(source, value)) {
                Some((text, is_nullable)) => text_rules(text, is_nullable, &part),
                None => {
                    check_rules(self.lark.len() + definition_bytes, place)?;
                    let at = format!("{place}/properties/{}", escaped(key));
                    let property = Some(key.clone());
                    let content = Content { place: at, whole: Rc::clone(whole), property };
                    let options =
                        with_options(content.checked().schema, Strictness::Loose, whole.blanks);
                    self.properties.push(content);
                    format!("{part}v {}\n{part}v: %json {options}\n", quoted(END_OF_VALUE))
                }
            };
            let _ = write!(self.lark, "{part}: {begin} {rest}");
            parts.push(if is_required { part } else { format!("{part}?") });
        }
        if parts.is_empty() {
            parts.push("\"\"".to_string());
        }
        let _ = writeln!(self.lark, "{name}: {}", parts.join(" "));
        Ok(())
    }

    /// The rules become a grammar of the answer `start`.
    pub fn begin(&mut self, start: &str) {
        self.lark.insert_str(0, &format!("start: {start}\nTEXT: /(\\n|.)*/\n"));
    }
}

/// The place of a keyword that parameters with declared names cannot enforce for an object.
/// api/tool_shapes.cc (FitsParameters) has the same rule.
fn beyond_parameters(source: &Value) -> Option<String> {
    const MORE: [&str; 10] = [
        "$ref",
        "anyOf",
        "oneOf",
        "allOf",
        "enum",
        "const",
        "patternProperties",
        "propertyNames",
        "minProperties",
        "maxProperties",
    ];
    let members = source.as_object()?;
    if let Some(key) = MORE.iter().find(|key| members.contains_key(**key)) {
        return Some(key.to_string());
    }
    if !type_names(members).is_none_or(|names| names.contains(&"object")) {
        return Some("type".to_string());
    }
    if members.get("additionalProperties").is_some_and(|others| others != &Value::Bool(false)) {
        return Some("additionalProperties".to_string());
    }
    let declared = members.get("properties").and_then(Value::as_object);
    let named = declared.and_then(|all| all.keys().find(|name| name.contains('>')));
    if let Some(name) = named {
        return Some(format!("properties/{}", escaped(name)));
    }
    let is_declared = |name: &str| declared.is_some_and(|declared| declared.contains_key(name));
    required_of(members).any(|name| !is_declared(name)).then(|| "required".to_string())
}

/// The text of a parameter with this schema, as an expression of Lark: any text, or a text with a
/// length in code points. It never holds the end of its own tag, where a reader's value ends.
fn text_within(schema: &Value) -> String {
    // A length above any answer's is no bound, and no regular expression can count so far.
    let bound = |key: &str| {
        schema.get(key).and_then(Value::as_u64).filter(|count| *count <= u64::from(u32::MAX) / 2)
    };
    let length = match (bound("minLength").unwrap_or(0), bound("maxLength")) {
        (0, None) => "*".to_string(),
        (least, None) => format!("{{{least},}}"),
        (least, Some(most)) => format!("{{{least},{most}}}"),
    };
    format!("(/(\\n|.){length}/ & ~/(\\n|.)*<\\/parameter>(\\n|.)*/)")
}

/// Whether the values of a schema, as the client wrote it, are texts with no more than lengths or a
/// list of them. A listed text that holds the end of its tag is JSON.
fn is_plain_text(source: &Value) -> bool {
    const KINDS: [&[&str]; 3] = [&["enum"], &["const"], &["minLength", "maxLength"]];
    let is_text =
        |value: &Value| value.as_str().is_some_and(|text| !text.contains(END_OF_VALUE.trim()));
    let all_texts = |key: &str| match source.get(key) {
        Some(Value::Array(values)) => values.iter().all(is_text),
        value => value.is_none_or(is_text),
    };
    source.get("type").is_some_and(|kind| kind == "string")
        && !has_any(source, &["pattern", "format", "$ref", "anyOf", "oneOf", "allOf"])
        && KINDS.iter().filter(|keys| has_any(source, keys)).count() <= 1
        && all_texts("enum")
        && all_texts("const")
}

fn has_any(schema: &Value, keys: &[&str]) -> bool {
    keys.iter().any(|key| schema.get(key).is_some())
}

/// The schema of a parameter's text, and whether null may stand in its place. None = the value is
/// written as JSON. `source` is the client's form of the parameter's schema, `checked` ours.
fn text_branch<'a>(source: &Value, checked: &'a Value) -> Option<(&'a Value, bool)> {
    const OF_TEXTS: [&str; 8] =
        ["type", "enum", "const", "pattern", "format", "minLength", "maxLength", "$ref"];
    if is_plain_text(source) {
        return Some((checked, false));
    }
    let is_null = |value: &Value| value == "null";
    if let Some([one, other]) = source.get("type").and_then(Value::as_array).map(Vec::as_slice) {
        let is_nullable =
            (one == "string" && is_null(other)) || (is_null(one) && other == "string");
        let others = ["enum", "const", "pattern", "format", "$ref", "anyOf", "oneOf", "allOf"];
        return (is_nullable && !has_any(source, &others)).then_some((checked, true));
    }
    let key = if source.get("anyOf").is_some() { "anyOf" } else { "oneOf" };
    let other_key = if key == "anyOf" { "oneOf" } else { "anyOf" };
    let [one, other] = source.get(key)?.as_array()?.as_slice() else { return None };
    let is_null_alone = |branch: &Value| branch.get("type").is_some_and(is_null);
    let idx = match () {
        () if is_plain_text(one) && is_null_alone(other) => 0,
        () if is_null_alone(one) && is_plain_text(other) => 1,
        () => return None,
    };
    if has_any(source, &OF_TEXTS) || has_any(source, &[other_key, "allOf"]) {
        return None;
    }
    Some((checked.get(key)?.get(idx)?, true))
}

/// The rest of the rule `part` where a text stands in its tag as it is, and the rules that it
/// needs.
fn text_rules(text: &Value, is_nullable: bool, part: &str) -> String {
    let choices = text.get("enum").and_then(Value::as_array).cloned();
    let choices = choices.or_else(|| text.get("const").map(|only| vec![only.clone()]));
    let end = quoted(END_OF_VALUE);
    let null = if is_nullable { " | \"null\"" } else { "" };
    match choices {
        Some(texts) => {
            let options: Vec<String> = texts.iter().map(Value::to_string).collect();
            format!("({}{null}) {end}\n", options.join(" | "))
        }
        None => format!("{part}v\n{part}v[lazy]: ({}{null}) {end}\n", text_within(text)),
    }
}

/// Adds a rule for each structure, without the trigger with which it begins. Returns the names of
/// the rules for each trigger.
fn add_structures(
    members: &Map<String, Value>,
    triggers: &[&str],
    limits: &Limits,
    made: &mut Structural,
) -> Result<Vec<Vec<String>>, Failure> {
    let mut tags = vec![Vec::new(); triggers.len()];
    for (i, value) in list_at(members, "structures", "#")?.iter().enumerate() {
        let place = format!("#/structures/{i}");
        let structure = structure_of(value, &place)?;
        let found = triggers.iter().position(|trigger| structure.begin.starts_with(trigger));
        let Some(trigger) = found else {
            return Err(invalid(&format!("{place}/begin"), "begins with none of the triggers"));
        };
        let (at, name) = (format!("{place}/schema"), format!("c{i}"));
        made.add_content((structure.schema, structure.is_xml), &at, &name, limits)?;
        let begin = quoted(&structure.begin[triggers[trigger].len()..]);
        let _ = writeln!(made.lark, "s{i}: {begin} {name} {}", quoted(structure.end));
        tags[trigger].push(format!("s{i}"));
    }
    Ok(tags)
}

pub fn compile(text: &str, limits: &Limits) -> Result<Structural, Failure> {
    const MEMBERS: [&str; 7] =
        ["type", "structures", "triggers", "at_least_one", "max_tags", "separator", "excludes"];
    let mut value = json_text::parse("the structural tag", text, limits.max_values)?;
    if let Some(members) = value.as_object_mut() {
        // Clients write what belongs to the other form as null.
        members.retain(|key, member| {
            !member.is_null() || !["format", "structures", "triggers"].contains(&key.as_str())
        });
    }
    if value.get("type").is_some_and(|name| name != "structural_tag") {
        return Err(invalid("#/type", "must be \"structural_tag\""));
    }
    if let Some(format) = value.get("format") {
        members_of(&value, "#", &["type", "format"])?;
        return formats::compile(format, limits);
    }
    let members = members_of(&value, "#", &MEMBERS)?;
    let rules = rules_of(members)?;
    let mut made = Structural::default();
    if let Some(max_tags) = rules.max_tags {
        let tags = add_structures(members, &[""], limits, &mut made)?.concat().join(" | ");
        let more = match max_tags - 1 {
            0 => String::new(),
            more => format!(" ({} tag){{0,{more}}}", quoted(rules.separator)),
        };
        made.begin(&format!("tag{more}\ntag: {tags}"));
        return Ok(made);
    }
    list_at(members, "triggers", "#")?;
    let triggers = texts_at(members, "triggers", "#")?;
    let free = formats::free_text(&texts_at(members, "excludes", "#")?);
    let tags = add_structures(members, &triggers, limits, &mut made)?;
    let mut options = Vec::new();
    for (i, (trigger, tags)) in triggers.iter().zip(&tags).enumerate() {
        if tags.is_empty() {
            return Err(invalid(&format!("#/triggers/{i}"), "begins none of the structures"));
        }
        let (trigger, tags) = (quoted(trigger), tags.join(" | "));
        check_rules(made.lark.len() + free.len(), "#/excludes")?;
        let _ = writeln!(made.lark, "t{i}: head{i} ({tags})\nhead{i}[lazy]: {free} {trigger}");
        options.push(format!("t{i}"));
    }
    made.begin(&format!("({})* tail\ntail: TAIL\nTAIL: {free}", options.join(" | ")));
    Ok(made)
}
