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
    any_text_of, check_rules, flag_at, invalid, list_at, member_at, members_of, quoted, text_of,
    texts_at, Structural,
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

/// A format of the tree, and where it stands.
#[derive(Clone)]
struct Format<'a> {
    value: &'a Value,
    place: String,
    /// Formats around it.
    depth: usize,
}

impl<'a> Format<'a> {
    fn at(&self, key: &str) -> String {
        format!("{}/{key}", self.place)
    }

    fn kind(&self) -> Result<&'a str, Failure> {
        let members = self.value.as_object();
        let members = members.ok_or_else(|| invalid(&self.place, "must be an object"))?;
        text_of(members.get("type"), &self.at("type"))
    }

    fn members(&self, known: &[&str]) -> Result<&'a Map<String, Value>, Failure> {
        members_of(self.value, &self.place, known)
    }

    /// The format `value`, which is the part `key` of this one.
    fn inner(&self, value: &'a Value, key: &str) -> Format<'a> {
        Format { value, place: self.at(key), depth: self.depth + 1 }
    }

    fn content(&self, members: &'a Map<String, Value>) -> Result<Format<'a>, Failure> {
        Ok(self.inner(member_at(members, "content", &self.place)?, "content"))
    }

    fn list(&self, members: &'a Map<String, Value>, key: &str) -> Result<Vec<Format<'a>>, Failure> {
        let list = list_at(members, key, &self.place)?.iter().enumerate();
        Ok(list.map(|(i, value)| self.inner(value, &format!("{key}/{i}"))).collect())
    }
}

/// A part of a sequence.
enum Piece<'a> {
    Text(&'a str),
    Format(Format<'a>),
    /// The content of a tag and its ends.
    Tagged(Format<'a>, Vec<&'a str>),
}

pub fn compile(format: &Value, limits: &Limits) -> Result<Structural, Failure> {
    let mut forms = Forms { limits, made: Structural::default(), count: 0 };
    let root = Format { value: format, place: "#/format".to_string(), depth: 0 };
    let start = forms.rule(&root, Follow::End)?;
    forms.made.begin(&start);
    Ok(forms.made)
}

struct Forms<'a> {
    limits: &'a Limits,
    made: Structural,
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

/// Any text that holds none of `excludes`, as an expression of a terminal.
pub fn free_text(excludes: &[&str]) -> String {
    match excludes {
        [] => "TEXT".to_string(),
        _ => format!("(TEXT & ~(TEXT ({}) TEXT))", any_of(excludes)),
    }
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
    fn name(&mut self, format: &Format) -> Result<String, Failure> {
        let (place, max_depth) = (&format.place, self.limits.max_depth);
        if format.depth > max_depth || self.count == MAX_FORMATS {
            return Err(Failure::limit(format!(
                "the structural tag: {place}: more than {MAX_FORMATS} formats, or {max_depth} \
                 within each other"
            )));
        }
        check_rules(self.made.lark.len(), place)?;
        self.count += 1;
        Ok(format!("f{}", self.count))
    }

    /// The name of a rule for the format and the texts of `follow`.
    fn rule(&mut self, format: &Format, follow: Follow) -> Result<String, Failure> {
        let name = self.name(format)?;
        let body = match format.kind()? {
            "const_string" | "tag" | "sequence" => {
                let mut pieces = Vec::new();
                self.add_pieces(format, &mut pieces)?;
                self.joined(&pieces, follow)?
            }
            "or" => self.options(format, follow)?,
            "any_text" => return self.any_text(format, follow, name),
            "regex" => return self.regex(format, follow, name),
            "json_schema" | "qwen_xml_parameter" => return self.schema(format, follow, name),
            "optional" | "star" | "plus" | "repeat" => self.repeated(format, follow)?,
            "tags_with_separator" => self.separated(format, follow)?,
            "triggered_tags" => self.triggered(format, follow)?,
            _ => {
                let known = "any_text, const_string, json_schema, optional, or, plus, \
                             qwen_xml_parameter, regex, repeat, sequence, star, tag, \
                             tags_with_separator or triggered_tags";
                let why = format!("is not supported; it must be {known}");
                return Err(invalid(&format.at("type"), &why));
            }
        };
        let _ = writeln!(self.made.lark, "{name}: {body}");
        Ok(name)
    }

    /// The parts of a text, a tag or a sequence.
    fn add_pieces<'v>(
        &mut self,
        format: &Format<'v>,
        pieces: &mut Vec<Piece<'v>>,
    ) -> Result<(), Failure> {
        match format.kind()? {
            "const_string" => {
                let members = format.members(&["type", "value"])?;
                let text = any_text_of(members.get("value"), &format.at("value"))?;
                pieces.extend(Some(Piece::Text(text)).filter(|_| !text.is_empty()));
            }
            "tag" => self.add_tag(format, "", pieces)?,
            "sequence" => {
                let members = format.members(&["type", "elements"])?;
                self.name(format)?; // counts, and bounds the depth
                for element in format.list(members, "elements")? {
                    self.add_pieces(&element, pieces)?;
                }
            }
            _ => pieces.push(Piece::Format(format.clone())),
        }
        Ok(())
    }

    /// The parts of a tag without the text `trigger`, with which it begins.
    fn add_tag<'v>(
        &mut self,
        tag: &Format<'v>,
        trigger: &str,
        pieces: &mut Vec<Piece<'v>>,
    ) -> Result<(), Failure> {
        let members = tag.members(&["type", "begin", "content", "end"])?;
        let begin = &any_text_of(members.get("begin"), &tag.at("begin"))?[trigger.len()..];
        let content = tag.content(members)?;
        pieces.extend(Some(Piece::Text(begin)).filter(|_| !begin.is_empty()));
        match ends_of(members, &tag.place)? {
            ends if ends.is_empty() => {
                self.name(tag)?;
                self.add_pieces(&content, pieces)
            }
            ends => {
                pieces.push(Piece::Tagged(content, ends));
                Ok(())
            }
        }
    }

    /// An expression of the pieces in a row.
    fn joined(&mut self, pieces: &[Piece], follow: Follow) -> Result<String, Failure> {
        let mut parts: Vec<String> = Vec::new();
        let mut rest = pieces;
        let mut has_end = false;
        while let [piece, after @ ..] = rest {
            rest = after;
            parts.push(match (piece, rest) {
                (Piece::Text(text), _) => quoted(text),
                (Piece::Tagged(content, ends), _) => self.rule(content, Follow::Texts(ends))?,
                (Piece::Format(format), [Piece::Text(next), after @ ..]) => {
                    rest = after;
                    self.rule(format, Follow::Texts(&[*next]))?
                }
                (Piece::Format(format), []) => {
                    has_end = true;
                    self.rule(format, follow)?
                }
                (Piece::Format(format), _) => self.rule(format, Follow::Other)?,
            });
        }
        let end = if has_end { String::new() } else { ends(follow) };
        let all = parts.join(" ") + &end;
        Ok(if all.is_empty() { "\"\"".to_string() } else { all })
    }

    /// An expression of one of the elements, each with the texts of `follow`.
    fn options(&mut self, format: &Format, follow: Follow) -> Result<String, Failure> {
        let members = format.members(&["type", "elements"])?;
        let elements = format.list(members, "elements")?;
        let names = elements.iter().map(|element| self.rule(element, follow));
        Ok(names.collect::<Result<Vec<_>, _>>()?.join(" | "))
    }

    /// A rule that is one lexeme, up to the first of the texts that follow.
    fn lexeme(
        &mut self,
        name: String,
        expression: &str,
        place: &str,
        follow: Follow,
    ) -> Result<String, Failure> {
        let rules = &mut self.made.lark;
        let _ = match follow {
            Follow::End => {
                let terminal = name.to_uppercase();
                writeln!(rules, "{name}: {terminal}\n{terminal}: {expression}")
            }
            Follow::Texts(_) => writeln!(rules, "{name}[lazy]: {expression}{}", ends(follow)),
            Follow::Other => {
                let only = "may stand before a const_string, before the end of its tag or at the \
                            end of the answer alone";
                return Err(invalid(place, only));
            }
        };
        Ok(name)
    }

    fn any_text(
        &mut self,
        format: &Format,
        follow: Follow,
        name: String,
    ) -> Result<String, Failure> {
        let members = format.members(&["type", "excludes", "max_tokens"])?;
        if members.get("max_tokens").is_some_and(|count| !count.is_null()) {
            return Err(invalid(&format.at("max_tokens"), "is not supported"));
        }
        let text = free_text(&texts_at(members, "excludes", &format.place)?);
        self.lexeme(name, &text, &format.place, follow)
    }

    fn regex(&mut self, format: &Format, follow: Follow, name: String) -> Result<String, Failure> {
        let members = format.members(&["type", "pattern"])?;
        let at = format.at("pattern");
        let pattern = regex::checked(text_of(members.get("pattern"), &at)?, regex::Dialect::Ascii)
            .map_err(|why| invalid(&at, &why))?;
        self.lexeme(name, &format!("(/{pattern}/)"), &format.place, follow)
    }

    fn schema(&mut self, format: &Format, follow: Follow, name: String) -> Result<String, Failure> {
        let members = format.members(&["type", "json_schema", "style", "any_order"])?;
        let style = match members.get("style") {
            _ if members.get("type").is_some_and(|kind| kind == "qwen_xml_parameter") => "qwen_xml",
            None => "json",
            style => text_of(style, &format.at("style"))?,
        };
        if !matches!(style, "json" | "qwen_xml") {
            let known = "is not supported; it must be \"json\" or \"qwen_xml\"";
            return Err(invalid(&format.at("style"), known));
        }
        if flag_at(members, "any_order", &format.place)? {
            return Err(invalid(&format.at("any_order"), "is not supported"));
        }
        let schema = member_at(members, "json_schema", &format.place)?;
        let (at, inner) = (format.at("json_schema"), format!("{name}s"));
        self.made.add_content((schema, style == "qwen_xml"), &at, &inner, self.limits)?;
        let _ = writeln!(self.made.lark, "{name}: {inner}{}", ends(follow));
        Ok(name)
    }

    fn repeated(&mut self, format: &Format, follow: Follow) -> Result<String, Failure> {
        let kind = format.kind()?;
        let known: &[&str] = match kind {
            "repeat" => &["type", "content", "min", "max"],
            _ => &["type", "content"],
        };
        let members = format.members(known)?;
        let count = |key: &str| {
            let number = members.get(key).and_then(Value::as_u64);
            number
                .filter(|number| *number <= MAX_REPEATS)
                .ok_or_else(|| invalid(&format.at(key), &format!("must be 0 to {MAX_REPEATS}")))
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
                    return Err(invalid(&format.at("max"), "must be min or more, or -1"));
                }
                format!("{{{least},{most}}}")
            }
        };
        let content = self.rule(&format.content(members)?, Follow::Other)?;
        // Lark has no repetition of none.
        let all = if times == "{0,0}" { "\"\"".to_string() } else { format!("({content}){times}") };
        Ok(all + &ends(follow))
    }

    /// The name of a rule for one tag of a list, without the trigger with which it begins.
    fn tag(&mut self, tag: &Format, trigger: &str) -> Result<String, Failure> {
        if tag.value.get("type").is_some_and(|kind| kind != "tag") {
            return Err(invalid(&tag.at("type"), "must be \"tag\""));
        }
        let name = self.name(tag)?;
        let mut pieces = Vec::new();
        self.add_tag(tag, trigger, &mut pieces)?;
        let body = self.joined(&pieces, Follow::Other)?;
        let _ = writeln!(self.made.lark, "{name}: {body}");
        Ok(name)
    }

    fn separated(&mut self, format: &Format, follow: Follow) -> Result<String, Failure> {
        const MEMBERS: [&str; 5] =
            ["type", "tags", "separator", "at_least_one", "stop_after_first"];
        let members = format.members(&MEMBERS)?;
        let separator = any_text_of(members.get("separator"), &format.at("separator"))?;
        let tags = format.list(members, "tags")?;
        let tags = tags.iter().map(|tag| self.tag(tag, "")).collect::<Result<Vec<_>, _>>()?;
        let tag = format!("({})", tags.join(" | "));
        let list = match flag_at(members, "stop_after_first", &format.place)? {
            true => tag,
            false => format!("{tag} ({} {tag})*", quoted(separator)),
        };
        let times = if flag_at(members, "at_least_one", &format.place)? { "" } else { "?" };
        Ok(format!("({list}){times}{}", ends(follow)))
    }

    fn triggered(&mut self, format: &Format, follow: Follow) -> Result<String, Failure> {
        const MEMBERS: [&str; 6] =
            ["type", "triggers", "tags", "at_least_one", "stop_after_first", "excludes"];
        let (members, place) = (format.members(&MEMBERS)?, &format.place);
        let triggers = texts_at(members, "triggers", place)?;
        let (is_needed, is_last) = (
            flag_at(members, "at_least_one", place)?,
            flag_at(members, "stop_after_first", place)?,
        );
        let text = free_text(&texts_at(members, "excludes", place)?);
        let mut rests: Vec<Vec<String>> = vec![Vec::new(); triggers.len()];
        let mut first = Vec::new();
        for tag in format.list(members, "tags")? {
            let begin = text_of(tag.value.get("begin"), &tag.at("begin"))?;
            let mut fitting = (0..triggers.len()).filter(|k| begin.starts_with(triggers[*k]));
            let (Some(trigger), None) = (fitting.next(), fitting.next()) else {
                return Err(invalid(&tag.at("begin"), "must begin with one of the triggers"));
            };
            let rest = self.tag(&tag, triggers[trigger])?;
            first.push(format!("{} {rest}", quoted(triggers[trigger])));
            rests[trigger].push(rest);
        }
        let first = format!("({})", first.join(" | "));
        if is_needed && is_last {
            return Ok(format!("{first}{}", ends(follow)));
        }
        let after = self.triggers_in_text(format, &triggers, &rests, &text)?;
        let tail = self.name(format)?;
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
        format: &Format,
        triggers: &[&str],
        rests: &[Vec<String>],
        text: &str,
    ) -> Result<String, Failure> {
        let mut options = Vec::new();
        for (i, (trigger, rests)) in triggers.iter().zip(rests).enumerate() {
            if rests.is_empty() {
                let at = format.at(&format!("triggers/{i}"));
                return Err(invalid(&at, "begins none of the tags"));
            }
            let head = self.name(format)?;
            let _ = writeln!(self.made.lark, "{head}[lazy]: {text} {}", quoted(trigger));
            options.push(format!("{head} ({})", rests.join(" | ")));
        }
        Ok(options.join(" | "))
    }
}
