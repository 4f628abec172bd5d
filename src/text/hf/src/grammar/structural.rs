//! Structural tags: free text in which each trigger begins a tag whose content follows a schema.
//! The form is vLLM's {"type": "structural_tag", "structures": [{"begin", "schema", "end"}],
//! "triggers": [...]}; the result is a grammar in Lark.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::compile::{with_options, Limits};
use super::json_text;
use super::schema::{self, Strictness};
use crate::Failure;

const MAX_STRUCTURES: usize = 128;

/// A grammar, and the places of the schemas' keywords that it does not enforce.
pub struct Structural {
    pub lark: String,
    pub ignored: Vec<String>,
}

/// One kind of tag.
struct Structure<'a> {
    begin: &'a str,
    end: &'a str,
    schema: &'a Value,
}

fn invalid(place: &str, what: &str) -> Failure {
    Failure::invalid(format!("the structural tag: {place}: {what}"))
}

fn members_of<'a>(
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

fn list_of<'a>(members: &'a Map<String, Value>, key: &str) -> Result<&'a [Value], Failure> {
    let list = members.get(key).and_then(Value::as_array).map(Vec::as_slice);
    match list {
        Some(list) if (1..=MAX_STRUCTURES).contains(&list.len()) => Ok(list),
        _ => Err(invalid(
            &format!("#/{key}"),
            &format!("must be a list of 1 to {MAX_STRUCTURES} elements"),
        )),
    }
}

fn text_of<'a>(value: Option<&'a Value>, place: &str) -> Result<&'a str, Failure> {
    match value.and_then(Value::as_str) {
        Some(text) if !text.is_empty() => Ok(text),
        _ => Err(invalid(place, "must be a text that is not empty")),
    }
}

fn structure_of<'a>(value: &'a Value, place: &str) -> Result<Structure<'a>, Failure> {
    let members = members_of(value, place, &["begin", "schema", "end"])?;
    Ok(Structure {
        begin: text_of(members.get("begin"), &format!("{place}/begin"))?,
        end: text_of(members.get("end"), &format!("{place}/end"))?,
        schema: members
            .get("schema")
            .ok_or_else(|| invalid(&format!("{place}/schema"), "is missing"))?,
    })
}

/// A text as a literal of Lark.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

pub fn compile(text: &str, limits: &Limits) -> Result<Structural, Failure> {
    let value = json_text::parse("the structural tag", text, limits.max_values)?;
    let members = members_of(&value, "#", &["type", "structures", "triggers"])?;
    if members.get("type").is_some_and(|name| name != "structural_tag") {
        return Err(invalid("#/type", "must be \"structural_tag\""));
    }
    let triggers = list_of(members, "triggers")?
        .iter()
        .enumerate()
        .map(|(i, trigger)| text_of(Some(trigger), &format!("#/triggers/{i}")))
        .collect::<Result<Vec<_>, _>>()?;
    let mut tags: Vec<Vec<String>> = vec![Vec::new(); triggers.len()];
    let (mut rules, mut ignored) = (String::new(), Vec::new());
    for (i, value) in list_of(members, "structures")?.iter().enumerate() {
        let place = format!("#/structures/{i}");
        let structure = structure_of(value, &place)?;
        let found = triggers.iter().position(|trigger| structure.begin.starts_with(trigger));
        let Some(trigger) = found else {
            return Err(invalid(&format!("{place}/begin"), "begins with none of the triggers"));
        };
        let checked = schema::check(structure.schema, Strictness::Loose, limits)
            .map_err(|f| Failure::new(f.code, f.message.replacen('#', &in_schema(&place), 1)))?;
        ignored.extend(checked.ignored.iter().map(|at| at.replacen('#', &in_schema(&place), 1)));
        let schema = with_options(checked.schema, Strictness::Loose);
        let rest = &structure.begin[triggers[trigger].len()..];
        let rest = if rest.is_empty() { String::new() } else { quoted(rest) };
        let end = quoted(structure.end);
        let _ = writeln!(rules, "s{i}: {rest} json{i} {end}\njson{i}: %json {schema}");
        tags[trigger].push(format!("s{i}"));
    }
    let mut options = Vec::new();
    for (i, (trigger, tags)) in triggers.iter().zip(&tags).enumerate() {
        if tags.is_empty() {
            return Err(invalid(&format!("#/triggers/{i}"), "begins none of the structures"));
        }
        let (trigger, tags) = (quoted(trigger), tags.join(" | "));
        let _ = writeln!(rules, "t{i}: head{i} ({tags})\nhead{i}[lazy]: TEXT {trigger}");
        options.push(format!("t{i}"));
    }
    let options = options.join(" | ");
    let lark = format!("start: ({options})* tail\ntail: TEXT\nTEXT: /(\\n|.)*/\n{rules}");
    Ok(Structural { lark, ignored })
}

fn in_schema(place: &str) -> String {
    format!("{place}/schema")
}
