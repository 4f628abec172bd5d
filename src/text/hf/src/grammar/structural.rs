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

use std::fmt::Write;

use serde_json::{Map, Value};

use super::compile::{with_options, Limits};
use super::formats;
use super::json_text;
use super::places::escaped;
use super::schema::{self, Checked, Strictness};
use crate::Failure;

const MAX_STRUCTURES: usize = 1024;
const MAX_TAGS: u64 = 1000;
/// Bytes of all rules: texts and definitions are written again in each rule that needs them, and a
/// grammar past its memory would hold it for ever.
const MAX_RULE_BYTES: usize = 8 << 20;
/// The end of a parameter, after its value.
const END_OF_VALUE: &str = "\n</parameter>\n";

/// A grammar, the places of the schemas' keywords that it does not enforce, and the schemas with
/// their own places.
#[derive(Default)]
pub struct Structural {
    pub lark: String,
    pub ignored: Vec<String>,
    pub schemas: Vec<(String, Checked)>,
    /// The schemas of properties that stand in tags of their own.
    pub properties: Vec<(String, Checked)>,
}

/// One kind of tag.
struct Structure<'a> {
    begin: &'a str,
    end: &'a str,
    schema: &'a Value,
    is_xml: bool,
}

impl Structure<'_> {
    fn content_rules(
        &self,
        place: &str,
        name: &str,
        limits: &Limits,
        made: &mut Structural,
    ) -> Result<String, Failure> {
        let place = format!("{place}/schema");
        content_rules((self.schema, self.is_xml), &place, name, limits, made)
    }
}

/// The members beside structures and triggers.
struct Rules<'a> {
    /// The answer is tags alone, at most so many; none = free text with tags in it.
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

pub fn text_of<'a>(value: Option<&'a Value>, place: &str) -> Result<&'a str, Failure> {
    match value.and_then(Value::as_str) {
        Some(text) if !text.is_empty() => Ok(text),
        _ => Err(invalid(place, "must be a text that is not empty")),
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
        schema: members
            .get("schema")
            .ok_or_else(|| invalid(&format!("{place}/schema"), "is missing"))?,
    })
}

/// A text as a literal of Lark.
pub fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

fn rules_of(members: &Map<String, Value>) -> Result<Rules<'_>, Failure> {
    let is_forced = match members.get("at_least_one") {
        None => false,
        Some(flag) => {
            flag.as_bool().ok_or_else(|| invalid("#/at_least_one", "must be true or false"))?
        }
    };
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

/// A schema at `place` as rules named after `name`; `made` gets the schema too. `is_xml`: its
/// properties stand in tags of their own.
pub fn content_rules(
    (source, is_xml): (&Value, bool),
    place: &str,
    name: &str,
    limits: &Limits,
    made: &mut Structural,
) -> Result<String, Failure> {
    let within = |text: &str| text.replacen('#', place, 1);
    let checked = schema::check(source, Strictness::Loose, limits)
        .map_err(|f| Failure::new(f.code, within(&f.message)))?;
    made.ignored.extend(checked.ignored.iter().map(|at| within(at)));
    let rules = if is_xml {
        if let Some(key) = beyond_parameters(source) {
            let why = "parameters in tags cannot say it";
            return Err(Failure::invalid(format!("{place}/{key}: {why}")));
        }
        xml_rules(source, &checked, (name, place), &mut made.properties)?
    } else {
        let schema = with_options(checked.schema.clone(), Strictness::Loose, checked.blanks);
        format!("{name}: %json {schema}\n")
    };
    made.schemas.push((place.to_string(), checked));
    Ok(rules)
}

/// The place of what parameters of declared names cannot say about an object.
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
    if let Some(key) = MORE.iter().find(|key| source.get(**key).is_some()) {
        return Some(key.to_string());
    }
    if source.get("additionalProperties").is_some_and(|others| others != &Value::Bool(false)) {
        return Some("additionalProperties".to_string());
    }
    let declared = source.get("properties").and_then(Value::as_object);
    let named = declared.and_then(|all| all.keys().find(|name| name.contains('>')));
    if let Some(name) = named {
        return Some(format!("properties/{}", escaped(name)));
    }
    let names = source.get("required").and_then(Value::as_array);
    let is_declared = |name: &str| declared.is_some_and(|declared| declared.contains_key(name));
    let mut names = names.into_iter().flatten().filter_map(Value::as_str);
    names.any(|name| !is_declared(name)).then(|| "required".to_string())
}

/// The text of a parameter whose schema is `schema`, as an expression of Lark: any, or one of a
/// length in code points. It does not hold the end of its own tag, where a reader's value ends.
fn text_within(schema: &Value) -> String {
    // Longer than any answer is no bound, and no regular expression counts so far.
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
    let is_text =
        |value: &Value| value.as_str().is_some_and(|text| !text.contains(END_OF_VALUE.trim()));
    let all_texts = |key: &str| match source.get(key) {
        Some(Value::Array(values)) => values.iter().all(is_text),
        value => value.is_none_or(is_text),
    };
    source.get("type").is_some_and(|kind| kind == "string")
        && !has_any(source, &["pattern", "format", "$ref", "anyOf", "oneOf", "allOf"])
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

/// The properties of an object as tags, in their own order. `made` gets the schemas of those that
/// are JSON.
fn xml_rules(
    source: &Value,
    checked: &Checked,
    (name, place): (&str, &str),
    made: &mut Vec<(String, Checked)>,
) -> Result<String, Failure> {
    let schema = &checked.schema;
    let definitions = schema.get("$defs");
    let definition_bytes = definitions.map_or(0, |all| all.to_string().len());
    let empty = Map::new();
    let properties = schema.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required = schema.get("required").and_then(Value::as_array);
    let is_required =
        |key: &str| required.is_some_and(|names| names.iter().any(|name| name == key));
    let (mut parts, mut rules) = (Vec::new(), String::new());
    for (i, (key, value)) in properties.iter().enumerate() {
        if value == &Value::Bool(false) && !is_required(key) {
            continue; // no call has it
        }
        let part = format!("{name}p{i}");
        let _ = write!(rules, "{part}: {} ", quoted(&format!("<parameter={key}>\n")));
        let of_source = source.get("properties").and_then(|all| all.get(key));
        match of_source.and_then(|source| text_branch(source, value)) {
            Some((text, is_nullable)) => rules.push_str(&text_rules(text, is_nullable, &part)),
            None => {
                let mut inner = value.clone();
                check_rules(rules.len() + definition_bytes, place)?;
                if let (Value::Object(members), Some(defs)) = (&mut inner, definitions) {
                    members.insert("$defs".to_string(), defs.clone());
                }
                let options = with_options(inner.clone(), Strictness::Loose, checked.blanks);
                let end = quoted(END_OF_VALUE);
                let _ = writeln!(rules, "{part}v {end}\n{part}v: %json {options}");
                let at = format!("{place}/properties/{}", escaped(key));
                made.push((at, Checked { schema: inner, ignored: Vec::new(), ..checked.clone() }));
            }
        }
        parts.push(if is_required(key) { part } else { format!("{part}?") });
    }
    if parts.is_empty() {
        parts.push("\"\"".to_string());
    }
    Ok(format!("{name}: {}\n{rules}", parts.join(" ")))
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

/// A grammar of tags alone.
fn compile_forced(
    structures: &[Value],
    max_tags: u64,
    separator: &str,
    limits: &Limits,
) -> Result<Structural, Failure> {
    let (mut rules, mut made, mut tags) = (String::new(), Structural::default(), Vec::new());
    for (i, value) in structures.iter().enumerate() {
        let place = format!("#/structures/{i}");
        let structure = structure_of(value, &place)?;
        let name = format!("c{i}");
        let content = structure.content_rules(&place, &name, limits, &mut made)?;
        let (begin, end) = (quoted(structure.begin), quoted(structure.end));
        let _ = write!(rules, "s{i}: {begin} {name} {end}\n{content}");
        tags.push(format!("s{i}"));
    }
    let more = match max_tags - 1 {
        0 => String::new(),
        more => format!(" ({} tag){{0,{more}}}", quoted(separator)),
    };
    made.lark = format!("start: tag{more}\ntag: {}\nTEXT: /(\\n|.)*/\n{rules}", tags.join(" | "));
    Ok(made)
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
    if let Some(max_tags) = rules.max_tags {
        let structures = list_at(members, "structures", "#")?;
        return compile_forced(structures, max_tags, rules.separator, limits);
    }
    let triggers = list_at(members, "triggers", "#")?
        .iter()
        .enumerate()
        .map(|(i, trigger)| text_of(Some(trigger), &format!("#/triggers/{i}")))
        .collect::<Result<Vec<_>, _>>()?;
    let free = formats::free_text(&formats::texts_at(members, "excludes", "#")?);
    let mut tags: Vec<Vec<String>> = vec![Vec::new(); triggers.len()];
    let (mut rules, mut made) = (String::new(), Structural::default());
    for (i, value) in list_at(members, "structures", "#")?.iter().enumerate() {
        let place = format!("#/structures/{i}");
        let structure = structure_of(value, &place)?;
        let found = triggers.iter().position(|trigger| structure.begin.starts_with(trigger));
        let Some(trigger) = found else {
            return Err(invalid(&format!("{place}/begin"), "begins with none of the triggers"));
        };
        let name = format!("json{i}");
        let content = structure.content_rules(&place, &name, limits, &mut made)?;
        let rest = &structure.begin[triggers[trigger].len()..];
        let rest = if rest.is_empty() { String::new() } else { quoted(rest) };
        let end = quoted(structure.end);
        let _ = write!(rules, "s{i}: {rest} {name} {end}\n{content}");
        tags[trigger].push(format!("s{i}"));
    }
    let mut options = Vec::new();
    for (i, (trigger, tags)) in triggers.iter().zip(&tags).enumerate() {
        if tags.is_empty() {
            return Err(invalid(&format!("#/triggers/{i}"), "begins none of the structures"));
        }
        let (trigger, tags) = (quoted(trigger), tags.join(" | "));
        check_rules(rules.len() + free.len(), "#/excludes")?;
        let _ = writeln!(rules, "t{i}: head{i} ({tags})\nhead{i}[lazy]: {free} {trigger}");
        options.push(format!("t{i}"));
    }
    let options = options.join(" | ");
    made.lark =
        format!("start: ({options})* tail\ntail: TAIL\nTAIL: {free}\nTEXT: /(\\n|.)*/\n{rules}");
    Ok(made)
}
