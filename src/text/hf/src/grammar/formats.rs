//! Structural tags in xgrammar's form, {"type": "structural_tag", "format": {"type": ..}}: a tree
//! of formats, which becomes rules of Lark. The names are those of xgrammar's documentation
//! ("Structural Tag Usage"); a format or a member that has no exact counterpart is refused by its
//! place.
//!
//! llguidance's lexer takes the longest lexeme, so a free text or a regular expression is one
//! lexeme with the text after it, and ends where that text comes first. It may therefore stand
//! before a text, before the end of its tag, or at the end of the answer.

use std::fmt::Write;

use serde_json::{Map, Value};

use super::compile::Limits;
use super::regex;
use super::structural::{
    check_rules, content_rules, invalid, list_at, members_of, quoted, text_of, Structural,
};
use crate::Failure;

/// Formats in one tree. Each is a rule or a few.
const MAX_FORMATS: usize = 4096;
/// Repetitions that are counted.
const MAX_REPEATS: u64 = 1000;

/// The part of the answer after a format.
#[derive(Clone, Copy)]
enum Follow<'a> {
    /// The end of the answer.
    End,
    /// One of these texts, which the rule of the format has too.
    Texts(&'a [&'a str]),
    /// Anything else.
    Other,
}

/// A part of a sequence.
enum Piece<'a> {
    Text(&'a str),
    Format(&'a Value, String),
    /// The content of a tag and its ends.
    Tagged(&'a Value, String, Vec<&'a str>),
}

pub fn compile(format: &Value, limits: &Limits) -> Result<Structural, Failure> {
    let mut forms = Forms { limits, made: Structural::default(), rules: String::new(), count: 0 };
    let start = forms.format(format, "#/format", Follow::End, 0)?;
    let Forms { mut made, rules, .. } = forms;
    made.lark = format!("start: {start}\nTEXT: /(\\n|.)*/\n{rules}");
    Ok(made)
}

struct Forms<'a> {
    limits: &'a Limits,
    made: Structural,
    rules: String,
    /// Formats so far; their numbers name the rules.
    count: usize,
}

/// The texts of `follow` as an expression after others.
fn ends(follow: Follow) -> String {
    match follow {
        Follow::Texts(texts) => format!(" ({})", any_of(texts)),
        _ => String::new(),
    }
}

fn any_of(texts: &[&str]) -> String {
    texts.iter().map(|text| quoted(text)).collect::<Vec<_>>().join(" | ")
}

fn flag(members: &Map<String, Value>, key: &str, place: &str) -> Result<bool, Failure> {
    match members.get(key) {
        None => Ok(false),
        Some(flag) => flag
            .as_bool()
            .ok_or_else(|| invalid(&format!("{place}/{key}"), "must be true or false")),
    }
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

/// Any text that holds none of `excludes`, as an expression of a terminal.
pub fn free_text(excludes: &[&str]) -> String {
    match excludes {
        [] => "TEXT".to_string(),
        _ => format!("(TEXT & ~(TEXT ({}) TEXT))", any_of(excludes)),
    }
}

fn type_of<'a>(format: &'a Value, place: &str) -> Result<&'a str, Failure> {
    let kind = format.as_object().ok_or_else(|| invalid(place, "must be an object"))?.get("type");
    text_of(kind, &format!("{place}/type"))
}

/// The texts that end a tag; none = it ends with its content.
fn ends_of<'a>(members: &'a Map<String, Value>, place: &str) -> Result<Vec<&'a str>, Failure> {
    match members.get("end") {
        Some(Value::String(text)) if text.is_empty() => Ok(Vec::new()),
        Some(Value::String(text)) => Ok(vec![text]),
        Some(Value::Array(all)) if !all.is_empty() => texts_at(members, "end", place),
        _ => Err(invalid(&format!("{place}/end"), "must be a text, or a list of them")),
    }
}

impl Forms<'_> {
    fn name(&mut self, place: &str, depth: usize) -> Result<String, Failure> {
        if depth > self.limits.max_depth || self.count == MAX_FORMATS {
            return Err(Failure::limit(format!(
                "the structural tag: {place}: more than {MAX_FORMATS} formats, or {} within each \
                 other",
                self.limits.max_depth
            )));
        }
        check_rules(self.rules.len(), place)?;
        self.count += 1;
        Ok(format!("f{}", self.count))
    }

    /// The name of a rule for the format and the texts of `follow`.
    fn format(
        &mut self,
        format: &Value,
        place: &str,
        follow: Follow,
        depth: usize,
    ) -> Result<String, Failure> {
        let name = self.name(place, depth)?;
        let kind = type_of(format, place)?;
        let body = match kind {
            "const_string" | "tag" | "sequence" => {
                let mut pieces = Vec::new();
                self.add_pieces(format, place, depth, &mut pieces)?;
                self.joined(&pieces, follow, depth)?
            }
            "or" => {
                let members = members_of(format, place, &["type", "elements"])?;
                self.options(members, place, follow, depth)?
            }
            "any_text" => return self.any_text(format, place, follow, name),
            "regex" => return self.regex(format, place, follow, name),
            "json_schema" | "qwen_xml_parameter" => {
                return self.schema(format, place, follow, name);
            }
            "optional" | "star" | "plus" | "repeat" => {
                self.repeated(format, place, follow, depth)?
            }
            "tags_with_separator" => self.separated(format, place, follow, depth)?,
            "triggered_tags" => self.triggered(format, place, follow, depth)?,
            _ => {
                let known = "any_text, const_string, json_schema, optional, or, plus, \
                             qwen_xml_parameter, regex, repeat, sequence, star, tag, \
                             tags_with_separator or triggered_tags";
                return Err(invalid(
                    &format!("{place}/type"),
                    &format!("is not supported; it must be {known}"),
                ));
            }
        };
        let _ = writeln!(self.rules, "{name}: {body}");
        Ok(name)
    }

    /// The parts of a text, a tag or a sequence.
    fn add_pieces<'v>(
        &mut self,
        format: &'v Value,
        place: &str,
        depth: usize,
        pieces: &mut Vec<Piece<'v>>,
    ) -> Result<(), Failure> {
        match type_of(format, place)? {
            "const_string" => {
                let members = members_of(format, place, &["type", "value"])?;
                let text = members.get("value").and_then(Value::as_str);
                let text =
                    text.ok_or_else(|| invalid(&format!("{place}/value"), "must be a text"))?;
                pieces.extend(Some(Piece::Text(text)).filter(|_| !text.is_empty()));
            }
            "tag" => self.add_tag(format, place, depth, None, pieces)?,
            "sequence" => {
                let members = members_of(format, place, &["type", "elements"])?;
                self.name(place, depth)?; // counts, and bounds the depth
                for (i, element) in list_at(members, "elements", place)?.iter().enumerate() {
                    let place = format!("{place}/elements/{i}");
                    self.add_pieces(element, &place, depth + 1, pieces)?;
                }
            }
            _ => pieces.push(Piece::Format(format, place.to_string())),
        }
        Ok(())
    }

    /// The parts of a tag without the text `trigger` at its beginning.
    fn add_tag<'v>(
        &mut self,
        tag: &'v Value,
        place: &str,
        depth: usize,
        trigger: Option<&str>,
        pieces: &mut Vec<Piece<'v>>,
    ) -> Result<(), Failure> {
        let members = members_of(tag, place, &["type", "begin", "content", "end"])?;
        let begin = members.get("begin").and_then(Value::as_str);
        let begin = begin.ok_or_else(|| invalid(&format!("{place}/begin"), "must be a text"))?;
        let content = members
            .get("content")
            .ok_or_else(|| invalid(&format!("{place}/content"), "is missing"))?;
        let begin = &begin[trigger.map_or(0, str::len)..];
        pieces.extend(Some(Piece::Text(begin)).filter(|_| !begin.is_empty()));
        let inside = format!("{place}/content");
        match ends_of(members, place)? {
            ends if ends.is_empty() => {
                self.name(place, depth)?;
                self.add_pieces(content, &inside, depth + 1, pieces)
            }
            ends => {
                pieces.push(Piece::Tagged(content, inside, ends));
                Ok(())
            }
        }
    }

    /// An expression of the pieces in a row.
    fn joined(
        &mut self,
        pieces: &[Piece],
        follow: Follow,
        depth: usize,
    ) -> Result<String, Failure> {
        let mut parts: Vec<String> = Vec::new();
        let mut rest = pieces;
        let mut has_end = false;
        while let [piece, after @ ..] = rest {
            rest = after;
            match piece {
                Piece::Text(text) => parts.push(quoted(text)),
                Piece::Tagged(content, place, ends) => {
                    parts.push(self.format(content, place, Follow::Texts(ends), depth + 1)?);
                }
                Piece::Format(format, place) => {
                    has_end = rest.is_empty();
                    parts.push(match rest {
                        [Piece::Text(next), after @ ..] => {
                            rest = after;
                            self.format(format, place, Follow::Texts(&[*next]), depth + 1)?
                        }
                        [] => self.format(format, place, follow, depth + 1)?,
                        _ => self.format(format, place, Follow::Other, depth + 1)?,
                    });
                }
            }
        }
        let end = if has_end { String::new() } else { ends(follow) };
        let all = parts.join(" ") + &end;
        Ok(if all.is_empty() { "\"\"".to_string() } else { all })
    }

    /// An expression of one of the elements, each with the texts of `follow`.
    fn options(
        &mut self,
        members: &Map<String, Value>,
        place: &str,
        follow: Follow,
        depth: usize,
    ) -> Result<String, Failure> {
        let mut names = Vec::new();
        for (i, element) in list_at(members, "elements", place)?.iter().enumerate() {
            names.push(self.format(
                element,
                &format!("{place}/elements/{i}"),
                follow,
                depth + 1,
            )?);
        }
        Ok(names.join(" | "))
    }

    /// A rule that is one lexeme, up to the first of the texts that follow.
    fn lexeme(
        &mut self,
        name: String,
        expression: &str,
        place: &str,
        follow: Follow,
    ) -> Result<String, Failure> {
        match follow {
            Follow::End => {
                let terminal = name.to_uppercase();
                let _ = writeln!(self.rules, "{name}: {terminal}\n{terminal}: {expression}");
                Ok(name)
            }
            Follow::Texts(_) => {
                let _ = writeln!(self.rules, "{name}[lazy]: {expression}{}", ends(follow));
                Ok(name)
            }
            Follow::Other => {
                let only = "may stand before a const_string, before the end of its tag or at the \
                            end of the answer alone";
                Err(invalid(place, only))
            }
        }
    }

    fn any_text(
        &mut self,
        format: &Value,
        place: &str,
        follow: Follow,
        name: String,
    ) -> Result<String, Failure> {
        let members = members_of(format, place, &["type", "excludes", "max_tokens"])?;
        if members.get("max_tokens").is_some_and(|count| !count.is_null()) {
            return Err(invalid(&format!("{place}/max_tokens"), "is not supported"));
        }
        let text = free_text(&texts_at(members, "excludes", place)?);
        self.lexeme(name, &text, place, follow)
    }

    fn regex(
        &mut self,
        format: &Value,
        place: &str,
        follow: Follow,
        name: String,
    ) -> Result<String, Failure> {
        let members = members_of(format, place, &["type", "pattern"])?;
        let at = format!("{place}/pattern");
        let pattern = regex::checked(text_of(members.get("pattern"), &at)?, regex::Dialect::Ascii)
            .map_err(|why| invalid(&at, &why))?;
        self.lexeme(name, &format!("(/{pattern}/)"), place, follow)
    }

    fn schema(
        &mut self,
        format: &Value,
        place: &str,
        follow: Follow,
        name: String,
    ) -> Result<String, Failure> {
        let members = members_of(format, place, &["type", "json_schema", "style", "any_order"])?;
        let style = match members.get("style") {
            _ if members.get("type").is_some_and(|kind| kind == "qwen_xml_parameter") => "qwen_xml",
            None => "json",
            style => text_of(style, &format!("{place}/style"))?,
        };
        if !matches!(style, "json" | "qwen_xml") {
            let known = "is not supported; it must be \"json\" or \"qwen_xml\"";
            return Err(invalid(&format!("{place}/style"), known));
        }
        if flag(members, "any_order", place)? {
            return Err(invalid(&format!("{place}/any_order"), "is not supported"));
        }
        let at = format!("{place}/json_schema");
        let schema = members.get("json_schema").ok_or_else(|| invalid(&at, "is missing"))?;
        let inner = format!("{name}s");
        let is_xml = style == "qwen_xml";
        let rules = content_rules((schema, is_xml), &at, &inner, self.limits, &mut self.made)?;
        let _ = write!(self.rules, "{name}: {inner}{}\n{rules}", ends(follow));
        Ok(name)
    }

    fn repeated(
        &mut self,
        format: &Value,
        place: &str,
        follow: Follow,
        depth: usize,
    ) -> Result<String, Failure> {
        let kind = type_of(format, place)?;
        let known: &[&str] = match kind {
            "repeat" => &["type", "content", "min", "max"],
            _ => &["type", "content"],
        };
        let members = members_of(format, place, known)?;
        let count = |key: &str| {
            let number = members.get(key).and_then(Value::as_u64);
            number.filter(|number| *number <= MAX_REPEATS).ok_or_else(|| {
                invalid(&format!("{place}/{key}"), &format!("must be 0 to {MAX_REPEATS}"))
            })
        };
        let times = match kind {
            "optional" => "?".to_string(),
            "star" => "*".to_string(),
            "plus" => "+".to_string(),
            _ if members.get("max").is_some_and(|max| max == -1) => {
                format!("{{{},}}", count("min")?)
            }
            _ => {
                let (least, most) = (count("min")?, count("max")?);
                if most < least {
                    return Err(invalid(&format!("{place}/max"), "must be min or more, or -1"));
                }
                format!("{{{least},{most}}}")
            }
        };
        let at = format!("{place}/content");
        let content = members.get("content").ok_or_else(|| invalid(&at, "is missing"))?;
        let content = self.format(content, &at, Follow::Other, depth + 1)?;
        // Lark has no repetition of none.
        let all = if times == "{0,0}" { "\"\"".to_string() } else { format!("({content}){times}") };
        Ok(all + &ends(follow))
    }

    /// The name of a rule for one tag of a list, without its trigger.
    fn tag(
        &mut self,
        tag: &Value,
        place: &str,
        depth: usize,
        trigger: Option<&str>,
    ) -> Result<String, Failure> {
        let is_tag = tag.get("type").is_none_or(|kind| kind == "tag");
        if !is_tag {
            return Err(invalid(&format!("{place}/type"), "must be \"tag\""));
        }
        let name = self.name(place, depth)?;
        let mut pieces = Vec::new();
        self.add_tag(tag, place, depth, trigger, &mut pieces)?;
        let body = self.joined(&pieces, Follow::Other, depth)?;
        let _ = writeln!(self.rules, "{name}: {body}");
        Ok(name)
    }

    fn separated(
        &mut self,
        format: &Value,
        place: &str,
        follow: Follow,
        depth: usize,
    ) -> Result<String, Failure> {
        const MEMBERS: [&str; 5] =
            ["type", "tags", "separator", "at_least_one", "stop_after_first"];
        let members = members_of(format, place, &MEMBERS)?;
        let separator = members.get("separator").and_then(Value::as_str);
        let separator =
            separator.ok_or_else(|| invalid(&format!("{place}/separator"), "must be a text"))?;
        let mut tags = Vec::new();
        for (i, tag) in list_at(members, "tags", place)?.iter().enumerate() {
            tags.push(self.tag(tag, &format!("{place}/tags/{i}"), depth + 1, None)?);
        }
        let tag = format!("({})", tags.join(" | "));
        let list = match flag(members, "stop_after_first", place)? {
            true => tag,
            false => format!("{tag} ({} {tag})*", quoted(separator)),
        };
        let times = if flag(members, "at_least_one", place)? { "" } else { "?" };
        Ok(format!("({list}){times}{}", ends(follow)))
    }

    fn triggered(
        &mut self,
        format: &Value,
        place: &str,
        follow: Follow,
        depth: usize,
    ) -> Result<String, Failure> {
        const MEMBERS: [&str; 6] =
            ["type", "triggers", "tags", "at_least_one", "stop_after_first", "excludes"];
        let members = members_of(format, place, &MEMBERS)?;
        let triggers = texts_at(members, "triggers", place)?;
        let (is_needed, is_last) =
            (flag(members, "at_least_one", place)?, flag(members, "stop_after_first", place)?);
        let text = free_text(&texts_at(members, "excludes", place)?);
        let mut rests: Vec<Vec<String>> = vec![Vec::new(); triggers.len()];
        let mut first = Vec::new();
        for (i, tag) in list_at(members, "tags", place)?.iter().enumerate() {
            let at = format!("{place}/tags/{i}");
            let begin = text_of(tag.get("begin"), &format!("{at}/begin"))?;
            let mut fitting = (0..triggers.len()).filter(|k| begin.starts_with(triggers[*k]));
            let (Some(trigger), None) = (fitting.next(), fitting.next()) else {
                return Err(invalid(&format!("{at}/begin"), "must begin with one of the triggers"));
            };
            let rest = self.tag(tag, &at, depth + 1, Some(triggers[trigger]))?;
            first.push(format!("{} {rest}", quoted(triggers[trigger])));
            rests[trigger].push(rest);
        }
        let first = format!("({})", first.join(" | "));
        if is_needed && is_last {
            return Ok(format!("{first}{}", ends(follow)));
        }
        let after = self.triggers_in_text(&triggers, &rests, &text, place, depth)?;
        let tail = self.name(place, depth)?;
        let tail = self.lexeme(tail, &text, place, follow)?;
        Ok(match (is_needed, is_last) {
            (true, _) => format!("{first} ({after})* {tail}"),
            (false, true) => format!("({after}){} | {tail}", ends(follow)),
            (false, false) => format!("({after})* {tail}"),
        })
    }

    /// An expression of free text up to a trigger, and the rest of a tag that begins with it.
    fn triggers_in_text(
        &mut self,
        triggers: &[&str],
        rests: &[Vec<String>],
        text: &str,
        place: &str,
        depth: usize,
    ) -> Result<String, Failure> {
        let mut options = Vec::new();
        for (i, (trigger, rests)) in triggers.iter().zip(rests).enumerate() {
            if rests.is_empty() {
                return Err(invalid(&format!("{place}/triggers/{i}"), "begins none of the tags"));
            }
            let head = self.name(place, depth)?;
            let _ = writeln!(self.rules, "{head}[lazy]: {text} {}", quoted(trigger));
            options.push(format!("{head} ({})", rests.join(" | ")));
        }
        Ok(options.join(" | "))
    }
}
