//! How Python's str cuts itself: split, rsplit, splitlines, partition, rpartition.

use super::call::{text_of, Args};
use super::error::{charge_read, charge_work, fail, Res};
use super::unicode;
use super::value::{Text, Value};

pub fn call(text: &Text, name: &'static str, args: Args) -> Res<Value> {
    let parts: Vec<&str> = match name {
        "split" | "rsplit" => {
            let bound = args.bind(name, &["sep", "maxsplit"])?;
            let most = usize::try_from(bound.integer(1, -1)?).unwrap_or(usize::MAX);
            let separator = bound.text(0)?;
            charge_parts(&text.text, separator, most)?;
            match (separator, name) {
                (Some(""), _) => return fail("empty separator"),
                (Some(separator), "split") => {
                    text.text.splitn(most.saturating_add(1), separator).collect()
                }
                (Some(separator), _) => {
                    let mut parts: Vec<&str> =
                        text.text.rsplitn(most.saturating_add(1), separator).collect();
                    parts.reverse();
                    parts
                }
                (None, "split") => split_blanks(&text.text, most),
                (None, _) => rsplit_blanks(&text.text, most),
            }
        }
        "splitlines" => {
            let bound = args.bind(name, &["keepends"])?;
            charge_work(text.text.len().saturating_mul(size_of::<Value>()))?;
            split_lines(&text.text, bound.is_true(0, false))
        }
        _ => {
            let given = args.plain(name, 1)?;
            let Some(separator) = given.first() else {
                return fail(format!("{name}() takes exactly one argument (0 given)"));
            };
            let separator = text_of(separator, name)?;
            charge_read(separator.len())?;
            if separator.is_empty() {
                return fail("empty separator");
            }
            let parts = partition(&text.text, separator, name == "rpartition");
            return Value::tuple(parts.map(|part| Value::str_like(part, text)).to_vec());
        }
    };
    Value::list(parts.into_iter().map(|part| Value::str_like(part, text)).collect())
}

fn charge_parts(text: &str, separator: Option<&str>, most: usize) -> Res<()> {
    charge_read(separator.map_or(0, str::len))?;
    let num_parts = match separator {
        Some("") => 0,
        Some(separator) => text.matches(separator).count(),
        None => text.len() / 2,
    };
    charge_work(text.len() + num_parts.min(most).saturating_mul(64))
}

fn partition<'a>(text: &'a str, separator: &'a str, from_end: bool) -> [&'a str; 3] {
    let at = if from_end { text.rfind(separator) } else { text.find(separator) };
    match at {
        Some(at) => [&text[..at], separator, &text[at + separator.len()..]],
        None if from_end => ["", "", text],
        None => [text, "", ""],
    }
}

fn split_blanks(text: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_start_matches(unicode::is_space);
    while !rest.is_empty() {
        if parts.len() == most {
            parts.push(rest);
            break;
        }
        let end = rest.find(unicode::is_space).unwrap_or(rest.len());
        parts.push(&rest[..end]);
        rest = rest[end..].trim_start_matches(unicode::is_space);
    }
    parts
}

fn rsplit_blanks(text: &str, most: usize) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text.trim_end_matches(unicode::is_space);
    while !rest.is_empty() {
        if parts.len() == most {
            parts.push(rest);
            break;
        }
        let begin = rest
            .char_indices()
            .rev()
            .find(|(_, c)| unicode::is_space(*c))
            .map_or(0, |(at, c)| at + c.len_utf8());
        parts.push(&rest[begin..]);
        rest = rest[..begin].trim_end_matches(unicode::is_space);
    }
    parts.reverse();
    parts
}

pub fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    let mut lines = Vec::new();
    let mut begin = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        if !unicode::is_line_end(c) {
            continue;
        }
        let mut end = at + c.len_utf8();
        if c == '\r' && chars.next_if(|(_, next)| *next == '\n').is_some() {
            end += 1;
        }
        lines.push(&text[begin..if keep_ends { end } else { at }]);
        begin = end;
    }
    if begin < text.len() {
        lines.push(&text[begin..]);
    }
    lines
}
