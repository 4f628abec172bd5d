//! Filters of texts.

use super::call::{text_of, Args};
use super::error::{charge_work, fail, Res};
use super::escape::{escape, strip_tags};
use super::filters::as_float;
use super::numbers;
use super::ops::{self, undefined};
use super::percent;
use super::repr;
use super::strings;
use super::strings_split::split_lines;
use super::unicode;
use super::value::{Text, Value};
use super::wordwrap;

/// jinja2's soft_str: a text stays what it is, all else is printed.
fn soft(value: &Value) -> Res<Text> {
    match value {
        Value::Str(text) => Ok(text.clone()),
        other => Ok(Text::new(repr::str(other)?)),
    }
}

pub fn apply(name: &'static str, value: Value, args: Args) -> Res<Value> {
    match name {
        "string" => {
            args.bind(name, &[])?;
            Ok(Value::Str(soft(&value)?))
        }
        "safe" => {
            args.bind(name, &[])?;
            Ok(Value::Str(Text { text: repr::str(&value)?.into(), safe: true }))
        }
        "e" | "escape" | "forceescape" => {
            args.bind(name, &[])?;
            let text = soft(&value)?;
            if text.safe && name != "forceescape" {
                return Ok(Value::Str(text));
            }
            Ok(Value::Str(Text { text: escape(&text.text)?.into(), safe: true }))
        }
        "lower" | "upper" | "capitalize" => {
            args.bind(name, &[])?;
            let text = soft(&value)?;
            charge_work(text.text.len().saturating_mul(2))?;
            Ok(Value::str_like(strings::change_case(&text.text, name), &text))
        }
        "title" => {
            args.bind(name, &[])?;
            title(&soft(&value)?.text)
        }
        "trim" => {
            let bound = args.bind(name, &["chars"])?;
            let text = soft(&value)?;
            Ok(Value::str_like(strings::strip(&text.text, "strip", bound.text(0)?)?, &text))
        }
        "center" => {
            let bound = args.bind(name, &["width"])?;
            let width = Value::Int(bound.integer(0, 80)?);
            strings::call(&soft(&value)?, "center", Args::of(vec![width]))
        }
        "replace" => {
            let bound = args.bind(name, &["old", "new", "count"])?;
            let (Some(old), Some(new)) = (bound.get(0), bound.get(1)) else {
                return fail("replace() missing a required positional argument");
            };
            let count = bound.given(2).map_or(Ok(-1), ops::small)?;
            let text = repr::str(&value)?;
            let out = strings::replace(&text, &repr::str(old)?, &repr::str(new)?, count)?;
            Ok(Value::str(out))
        }
        "format" => format(&soft(&value)?, args),
        "striptags" => {
            args.bind(name, &[])?;
            Ok(Value::str(strip_tags(&repr::str(&value)?)?))
        }
        "indent" => indent(&value, args),
        "truncate" => truncate(&value, args),
        "wordcount" => {
            args.bind(name, &[])?;
            let text = soft(&value)?;
            charge_work(text.text.len())?;
            let words = text.text.split(|c| !unicode::is_word(c)).filter(|w| !w.is_empty());
            Ok(Value::Int(words.count() as i64))
        }
        "wordwrap" => word_wrap(&value, args),
        "urlencode" => url_encode(&value, args),
        "xmlattr" => xml_attr(&value, args),
        _ => fail(format!("No filter named '{name}'.")),
    }
}

fn format(text: &Text, args: Args) -> Res<Value> {
    if !args.positional.is_empty() && !args.keywords.is_empty() {
        return fail("can't handle positional and keyword arguments at the same time");
    }
    let values = if args.keywords.is_empty() {
        Value::tuple(args.positional)?
    } else {
        let entry = |(key, value): (std::sync::Arc<str>, Value)| (Value::str(&*key), value);
        Value::dict(args.keywords.into_iter().map(entry).collect())?
    };
    percent::format(text, &values)
}

/// The first letter of each word upper, the rest lower; a word begins after one of -({[< or a
/// blank.
fn title(text: &str) -> Res<Value> {
    charge_work(text.len().saturating_mul(2))?;
    let is_break = |c: char| unicode::is_space(c) || matches!(c, '-' | '(' | '{' | '[' | '<');
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_word = !is_break(first);
        let end = rest.find(|c| is_break(c) == is_word).unwrap_or(rest.len());
        let (part, after) = rest.split_at(end);
        out.extend(first.to_uppercase());
        out.push_str(&part[first.len_utf8()..].to_lowercase());
        rest = after;
    }
    Ok(Value::str(out))
}

fn string(value: &Value, what: &str) -> Res<Text> {
    match value {
        Value::Str(text) => Ok(text.clone()),
        Value::Undefined(why) => undefined(why),
        other => fail(format!("{what}: '{}' object is no str", other.type_name())),
    }
}

fn indent(value: &Value, args: Args) -> Res<Value> {
    let bound = args.bind("indent", &["width", "first", "blank"])?;
    let text = string(value, "indent")?;
    let indention = match bound.get(0) {
        Some(Value::Str(text)) => text.text.to_string(),
        Some(width) => {
            let width = usize::try_from(ops::small(width)?).unwrap_or(0);
            charge_work(width)?;
            " ".repeat(width)
        }
        None => "    ".to_string(),
    };
    let num_ends = text.text.chars().filter(|c| unicode::is_line_end(*c)).count();
    charge_work(text.text.len().saturating_add(num_ends.saturating_mul(size_of::<&str>())))?;
    let whole = format!("{}\n", text.text);
    let lines = split_lines(&whole, false);
    charge_work(whole.len().saturating_add(lines.len().saturating_mul(indention.len() + 16)))?;
    let with_blank = bound.is_true(2, false);
    let mut out = String::with_capacity(whole.len() + lines.len() * indention.len());
    if bound.is_true(1, false) {
        out.push_str(&indention);
    }
    for (i, line) in lines.iter().enumerate() {
        if i > 0 {
            out.push('\n');
            if with_blank || !line.is_empty() {
                out.push_str(&indention);
            }
        }
        out.push_str(line);
    }
    Ok(Value::str_like(out, &text))
}

fn truncate(value: &Value, args: Args) -> Res<Value> {
    let bound = args.bind("truncate", &["length", "killwords", "end", "leeway"])?;
    let text = string(value, "truncate")?;
    let length = bound.integer(0, 255)?;
    let end = bound.get(2).map_or(Ok("..."), |end| text_of(end, "truncate"))?;
    let leeway = bound.given(3).map_or(Ok(5), ops::small)?;
    charge_work(end.len())?;
    let end_len = end.chars().count() as i64;
    if length < end_len {
        return fail(format!("expected length >= {end_len}, got {length}"));
    }
    if leeway < 0 {
        return fail(format!("expected leeway >= 0, got {leeway}"));
    }
    charge_work(text.text.len())?;
    if text.text.chars().count() as i64 <= length.saturating_add(leeway) {
        return Ok(Value::Str(text));
    }
    let mut kept: String = text.text.chars().take((length - end_len) as usize).collect();
    if !bound.is_true(1, false) {
        if let Some(blank) = kept.rfind(' ') {
            kept.truncate(blank);
        }
    }
    Ok(Value::str_like(kept + end, &text))
}

fn word_wrap(value: &Value, args: Args) -> Res<Value> {
    let bound =
        args.bind("wordwrap", &["width", "break_long_words", "wrapstring", "break_on_hyphens"])?;
    let text = string(value, "wordwrap")?;
    let width = bound.integer(0, 79)?;
    let Some(width) = usize::try_from(width).ok().filter(|w| *w > 0) else {
        return fail(format!("invalid width {width} (must be > 0)"));
    };
    let wrap = bound.text(2)?.unwrap_or("\n");
    let (long, hyphens) = (bound.is_true(1, true), bound.is_true(3, true));
    charge_work(text.text.len().saturating_mul(8 + wrap.len()))?;
    let paragraphs: Vec<String> = split_lines(&text.text, false)
        .into_iter()
        .map(|line| Ok(wordwrap::wrap(line, width, long, hyphens)?.join(wrap)))
        .collect::<Res<_>>()?;
    Ok(Value::str(paragraphs.join(wrap)))
}

/// urllib.parse.quote; in a query also '/' is written as a number and a blank as '+'.
fn quote(text: &str, in_query: bool, out: &mut String) {
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'.' | b'-' | b'~' => {
                out.push(char::from(byte))
            }
            b'/' if !in_query => out.push('/'),
            b' ' if in_query => out.push('+'),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
}

fn url_encode(value: &Value, args: Args) -> Res<Value> {
    args.bind("urlencode", &[])?;
    let mut out = String::new();
    let pairs = match value {
        Value::Dict(dict) => {
            charge_work(dict.entries.len().saturating_mul(4 * size_of::<Value>()))?;
            let pair = |(key, value): &(Value, Value)| vec![key.clone(), value.clone()];
            dict.entries.iter().map(pair).collect::<Vec<_>>()
        }
        Value::Str(_) => Vec::new(),
        other if other.is_iterable() => {
            other.iterate()?.iter().map(Value::iterate).collect::<Res<_>>()?
        }
        _ => Vec::new(),
    };
    if matches!(value, Value::Str(_)) || !value.is_iterable() {
        let text = repr::str(value)?;
        charge_work(text.len().saturating_mul(3))?;
        quote(&text, false, &mut out);
        return Ok(Value::str(out));
    }
    for (i, pair) in pairs.iter().enumerate() {
        let [key, value] = &pair[..] else {
            return fail(format!("a pair of urlencode has {} values, not 2", pair.len()));
        };
        out.push_str(if i > 0 { "&" } else { "" });
        let (key, value) = (repr::str(key)?, repr::str(value)?);
        charge_work((key.len() + value.len()).saturating_mul(3))?;
        quote(&key, true, &mut out);
        out.push('=');
        quote(&value, true, &mut out);
    }
    Ok(Value::str(out))
}

fn xml_attr(value: &Value, args: Args) -> Res<Value> {
    let bound = args.bind("xmlattr", &["autospace"])?;
    let Value::Dict(dict) = value else {
        if let Value::Undefined(why) = value {
            return undefined(why);
        }
        return fail(format!("'{}' object has no attribute 'items'", value.type_name()));
    };
    let mut out = String::new();
    for (key, value) in &dict.entries {
        if matches!(value, Value::None | Value::Undefined(_)) {
            continue;
        }
        let key = text_of(key, "xmlattr")?;
        charge_work(key.len())?;
        if key.contains([' ', '\t', '\n', '\r', '\x0c', '\x0b', '/', '>', '=']) {
            return fail(format!("Invalid character in attribute name: '{key}'"));
        }
        let text = soft(value)?;
        let shown = if text.safe { text.text.to_string() } else { escape(&text.text)? };
        charge_work(shown.len() + out.len() / 64)?;
        out.push_str(if out.is_empty() { "" } else { " " });
        out.push_str(&format!("{}=\"{shown}\"", escape(key)?));
    }
    if bound.is_true(0, true) && !out.is_empty() {
        out.insert(0, ' ');
    }
    Ok(Value::str(out))
}

pub fn file_size(value: &Value, binary: bool) -> Res<Value> {
    let bytes = match value {
        Value::Str(text) => match numbers::parse_float(&text.text) {
            Some(number) => number,
            None => return fail("could not convert string to float"),
        },
        other => as_float(other)?,
    };
    let base: f64 = if binary { 1024.0 } else { 1000.0 };
    if bytes == 1.0 {
        return Ok(Value::str("1 Byte"));
    }
    if bytes < base {
        return Ok(Value::str(format!("{} Bytes", bytes.trunc() as i64)));
    }
    let mut text = String::new();
    for (i, prefix) in ["k", "M", "G", "T", "P", "E", "Z", "Y"].iter().enumerate() {
        let unit = base.powi(i as i32 + 2);
        let name =
            if binary { format!("{}iB", prefix.to_uppercase()) } else { format!("{prefix}B") };
        text = format!("{:.1} {name}", base * bytes / unit);
        if bytes < unit {
            break;
        }
    }
    Ok(Value::str(text))
}
