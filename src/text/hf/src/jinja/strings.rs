//! The methods of Python's str. Places are characters.

use super::call::{text_of, Args};
use super::error::{charge, charge_read, charge_work, fail, Res};
use super::ops;
use super::strformat;
use super::strings_split as split;
use super::unicode;
use super::value::{Dict, Text, Value};

/// Every attribute that a str has and a sandbox lets through.
pub const METHODS: &[&str] = &[
    "capitalize",
    "casefold",
    "center",
    "count",
    "encode",
    "endswith",
    "expandtabs",
    "find",
    "format",
    "format_map",
    "index",
    "isalnum",
    "isalpha",
    "isascii",
    "isdecimal",
    "isdigit",
    "isidentifier",
    "islower",
    "isnumeric",
    "isprintable",
    "isspace",
    "istitle",
    "isupper",
    "join",
    "ljust",
    "lower",
    "lstrip",
    "maketrans",
    "partition",
    "removeprefix",
    "removesuffix",
    "replace",
    "rfind",
    "rindex",
    "rjust",
    "rpartition",
    "rsplit",
    "rstrip",
    "split",
    "splitlines",
    "startswith",
    "strip",
    "swapcase",
    "title",
    "translate",
    "upper",
    "zfill",
];

/// `text.name(args)`
pub fn call(text: &Text, name: &'static str, args: Args) -> Res<Value> {
    // One pass over the text, at the least.
    charge_work(text.text.len())?;
    let like = |out: String| Ok(Value::str_like(out, text));
    match name {
        "format" => strformat::format(text, &args),
        "format_map" => {
            let mut given = args.plain(name, 1)?;
            let Some(Value::Dict(dict)) = given.pop() else {
                return fail("format_map() takes exactly one mapping");
            };
            charge_work(dict.entries.len().saturating_mul(size_of::<(Value, Value)>()))?;
            let keywords = dict
                .entries
                .iter()
                .filter_map(|(key, value)| key.as_str().map(|key| (key.into(), value.clone())));
            let args = Args { positional: Vec::new(), keywords: keywords.collect() };
            strformat::format(text, &args)
        }
        "join" => {
            let given = args.plain(name, 1)?;
            let Some(items) = given.first() else { return fail("join() takes one argument") };
            join(text, items)
        }
        "split" | "rsplit" | "splitlines" | "partition" | "rpartition" => {
            split::call(text, name, args)
        }
        "strip" | "lstrip" | "rstrip" => {
            let given = args.plain(name, 1)?;
            let chars = match given.first() {
                None | Some(Value::None) => None,
                Some(value) => Some(text_of(value, name)?),
            };
            like(strip(&text.text, name, chars)?)
        }
        "find" | "rfind" | "index" | "rindex" | "count" => places(text, name, args),
        "startswith" | "endswith" => affix(text, name, args),
        "replace" => {
            let bound = args.bind(name, &["old", "new", "count"])?;
            let (Some(old), Some(new)) = (bound.text(0)?, bound.text(1)?) else {
                return fail("replace() takes at least 2 arguments");
            };
            like(replace(&text.text, old, new, bound.integer(2, -1)?)?)
        }
        "removeprefix" | "removesuffix" => {
            let given = args.plain(name, 1)?;
            let Some(affix) = given.first() else {
                return fail(format!("{name}() takes one argument"));
            };
            let affix = text_of(affix, name)?;
            let cut = match name {
                "removeprefix" => text.text.strip_prefix(affix),
                _ => text.text.strip_suffix(affix),
            };
            like(cut.unwrap_or(&text.text).to_string())
        }
        "center" | "ljust" | "rjust" | "zfill" | "expandtabs" => like(widen(text, name, args)?),
        "lower" | "upper" | "title" | "capitalize" | "swapcase" | "casefold" => {
            args.plain(name, 0)?;
            charge_work(text.text.len().saturating_mul(2))?;
            like(change_case(&text.text, name))
        }
        "translate" => translate(text, args),
        "encode" | "maketrans" => fail(format!("str.{name} is not supported in chat templates")),
        _ => {
            args.plain(name, 0)?;
            Ok(Value::Bool(is_class(&text.text, name)))
        }
    }
}

pub fn join(separator: &Text, items: &Value) -> Res<Value> {
    let mut out = String::new();
    for (i, item) in items.iterate()?.iter().enumerate() {
        let Value::Str(item) = item else {
            return fail(format!(
                "sequence item {i}: expected str instance, {} found",
                item.type_name()
            ));
        };
        charge_work(item.text.len() + separator.text.len() + out.len() / 64)?;
        if i > 0 {
            out.push_str(&separator.text);
        }
        if separator.safe && !item.safe {
            out.push_str(&super::escape::escape(&item.text)?);
        } else {
            out.push_str(&item.text);
        }
    }
    Ok(Value::str_like(out, separator))
}

pub fn strip(text: &str, name: &str, chars: Option<&str>) -> Res<String> {
    let in_set = |c: char| match chars {
        None => unicode::is_space(c),
        Some(set) => set.contains(c),
    };
    charge_work(text.len().saturating_mul(1 + chars.map_or(0, str::len) / 16))?;
    let mut out = text;
    if name != "rstrip" {
        out = out.trim_start_matches(in_set);
    }
    if name != "lstrip" {
        out = out.trim_end_matches(in_set);
    }
    Ok(out.to_string())
}

pub fn replace(text: &str, old: &str, new: &str, count: i64) -> Res<String> {
    charge_read(old.len())?;
    let most = usize::try_from(count).unwrap_or(usize::MAX);
    let found = if old.is_empty() { text.chars().count() + 1 } else { text.matches(old).count() };
    let grown = found.min(most).saturating_mul(new.len());
    charge_work(text.len().saturating_add(grown))?;
    if !old.is_empty() {
        return Ok(text.replacen(old, new, most));
    }
    let mut out = String::with_capacity(text.len() + grown);
    let mut left = most;
    for c in text.chars() {
        if left > 0 {
            out.push_str(new);
            left -= 1;
        }
        out.push(c);
    }
    if left > 0 {
        out.push_str(new);
    }
    Ok(out)
}

/// The byte place of character `i`, at most the end.
fn byte_of(text: &str, i: usize) -> usize {
    if text.is_ascii() {
        return i.min(text.len());
    }
    text.char_indices().nth(i).map_or(text.len(), |(at, _)| at)
}

/// The bytes of text[begin:end]; None when begin lies behind the end.
fn window<'a>(
    text: &'a str,
    begin: Option<&Value>,
    end: Option<&Value>,
) -> Res<Option<(usize, &'a str)>> {
    let len = text.chars().count() as i64;
    let place = |value: Option<&Value>, default: i64| -> Res<i64> {
        Ok(match value {
            None | Some(Value::None) => default,
            Some(value) => match ops::small(value)? {
                at if at < 0 => at.saturating_add(len).max(0),
                at => at,
            },
        })
    };
    let (begin, end) = (place(begin, 0)?, place(end, len)?.min(len));
    if begin > end {
        return Ok(None);
    }
    let (from, to) = (byte_of(text, begin as usize), byte_of(text, end as usize));
    Ok(Some((begin as usize, &text[from..to])))
}

fn places(text: &Text, name: &'static str, args: Args) -> Res<Value> {
    let given = args.plain(name, 3)?;
    let Some(part) = given.first() else {
        return fail(format!("{name}() takes at least 1 argument (0 given)"));
    };
    let part = text_of(part, name)?;
    charge_read(part.len())?;
    let found = window(&text.text, given.get(1), given.get(2))?;
    if name == "count" {
        let count = match found {
            None => 0,
            Some((_, inner)) if part.is_empty() => inner.chars().count() + 1,
            Some((_, inner)) => inner.matches(part).count(),
        };
        return Ok(Value::Int(count as i64));
    }
    let is_last = name.starts_with('r');
    let place = found.and_then(|(begin, inner)| {
        let at = if is_last { inner.rfind(part) } else { inner.find(part) }?;
        Some(begin + inner[..at].chars().count())
    });
    match place {
        Some(at) => Ok(Value::Int(at as i64)),
        None if name.ends_with("find") => Ok(Value::Int(-1)),
        None => fail("substring not found"),
    }
}

fn affix(text: &Text, name: &'static str, args: Args) -> Res<Value> {
    let given = args.plain(name, 3)?;
    let candidates = match given.first() {
        Some(Value::Tuple(list)) => {
            charge_work(list.items.len().saturating_mul(size_of::<Value>()))?;
            list.items.clone()
        }
        Some(value) => vec![value.clone()],
        None => return fail(format!("{name}() takes at least 1 argument (0 given)")),
    };
    let inner = window(&text.text, given.get(1), given.get(2))?;
    for candidate in &candidates {
        let Value::Str(affix) = candidate else {
            if let Value::Undefined(_) = candidate {
                return fail(format!(
                    "{name} first arg must be str or a tuple of str, not Undefined"
                ));
            }
            return fail(format!(
                "{name} first arg must be str or a tuple of str, not {}",
                candidate.type_name()
            ));
        };
        let Some((_, inner)) = inner else { continue };
        charge_read(affix.text.len())?;
        let fits = match name {
            "startswith" => inner.starts_with(&*affix.text),
            _ => inner.ends_with(&*affix.text),
        };
        if fits {
            return Ok(Value::Bool(true));
        }
    }
    Ok(Value::Bool(false))
}

fn widen(text: &Text, name: &'static str, args: Args) -> Res<String> {
    if name == "expandtabs" {
        let bound = args.bind(name, &["tabsize"])?;
        return expand_tabs(&text.text, bound.integer(0, 8)?);
    }
    let given = args.plain(name, 2)?;
    let Some(width) = given.first() else {
        return fail(format!("{name}() takes at least 1 argument (0 given)"));
    };
    let width = usize::try_from(ops::small(width)?).unwrap_or(0);
    let fill = match given.get(1) {
        None => ' ',
        Some(value) => {
            let mut chars = text_of(value, name)?.chars();
            match (chars.next(), chars.next()) {
                (Some(fill), None) => fill,
                _ => return fail("The fill character must be exactly one character long"),
            }
        }
    };
    let len = text.text.chars().count();
    let missing = width.saturating_sub(len);
    charge_work(missing.saturating_mul(fill.len_utf8()))?;
    let run = |count: usize| fill.to_string().repeat(count);
    Ok(match name {
        "ljust" => format!("{}{}", text.text, run(missing)),
        "rjust" => format!("{}{}", run(missing), text.text),
        "center" => {
            // CPython's rule for which side gets the odd one.
            let left = missing / 2 + (missing & width & 1);
            format!("{}{}{}", run(left), text.text, run(missing - left))
        }
        _ => {
            let sign = usize::from(text.text.starts_with(['+', '-']));
            format!("{}{}{}", &text.text[..sign], "0".repeat(missing), &text.text[sign..])
        }
    })
}

fn expand_tabs(text: &str, size: i64) -> Res<String> {
    let size = usize::try_from(size).unwrap_or(0);
    charge_work(text.matches('\t').count().saturating_mul(size))?;
    let (mut out, mut column) = (String::new(), 0usize);
    for c in text.chars() {
        if c != '\t' {
            column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            out.push(c);
        } else if size > 0 {
            let blanks = size - column % size;
            out.push_str(&" ".repeat(blanks));
            column += blanks;
        }
    }
    Ok(out)
}

pub fn change_case(text: &str, name: &str) -> String {
    match name {
        "lower" => text.to_lowercase(),
        "upper" => text.to_uppercase(),
        "casefold" => unicode::casefold(text),
        "capitalize" => {
            let mut out = String::with_capacity(text.len());
            let mut chars = text.chars();
            if let Some(first) = chars.next() {
                unicode::push_title(first, &mut out);
                out.push_str(&lower_rest(text, first.len_utf8()));
            }
            out
        }
        "swapcase" => {
            let mut out = String::with_capacity(text.len());
            for (at, c) in text.char_indices() {
                if c.is_uppercase() {
                    push_lower(text, at, c, &mut out);
                } else if c.is_lowercase() {
                    out.extend(c.to_uppercase());
                } else {
                    out.push(c);
                }
            }
            out
        }
        _ => {
            let mut out = String::with_capacity(text.len());
            let mut in_word = false;
            for (at, c) in text.char_indices() {
                if in_word {
                    push_lower(text, at, c, &mut out);
                } else {
                    unicode::push_title(c, &mut out);
                }
                in_word = unicode::is_cased(c);
            }
            out
        }
    }
}

/// The lower case of one character; a sigma at the end of a word is another.
fn push_lower(text: &str, at: usize, c: char, out: &mut String) {
    if c != 'Σ' {
        out.extend(c.to_lowercase());
        return;
    }
    let is_ignored = |c: &char| matches!(c, '\'' | '.' | ':' | '\u{ad}' | '\u{b7}' | '\u{2019}');
    let before = text[..at].chars().rev().find(|c| !is_ignored(c));
    let after = text[at + c.len_utf8()..].chars().find(|c| !is_ignored(c));
    let is_final = before.is_some_and(unicode::is_cased) && !after.is_some_and(unicode::is_cased);
    out.push(if is_final { 'ς' } else { 'σ' });
}

/// Lower case of what follows the first character; a final sigma depends on what stands before.
fn lower_rest(text: &str, first_len: usize) -> String {
    let whole = text.to_lowercase();
    let first = text[..first_len].to_lowercase();
    whole[first.len().min(whole.len())..].to_string()
}

fn is_class(text: &str, name: &str) -> bool {
    let all = |class: fn(char) -> bool| !text.is_empty() && text.chars().all(class);
    match name {
        "isalnum" => all(|c| {
            unicode::is_alpha(c)
                || unicode::is_decimal(c)
                || unicode::is_digit(c)
                || unicode::is_numeric(c)
        }),
        "isalpha" => all(unicode::is_alpha),
        "isascii" => text.is_ascii(),
        "isdecimal" => all(unicode::is_decimal),
        "isdigit" => all(unicode::is_digit),
        "isnumeric" => all(unicode::is_numeric),
        "isspace" => all(unicode::is_space),
        "isprintable" => text.chars().all(unicode::is_printable),
        "isidentifier" => {
            let mut chars = text.chars();
            chars.next().is_some_and(|c| c == '_' || unicode::is_alpha(c))
                && chars.all(|c| c == '_' || unicode::is_alpha(c) || unicode::is_decimal(c))
        }
        "islower" => {
            text.chars().any(char::is_lowercase)
                && !text.chars().any(|c| c.is_uppercase() || unicode::is_title(c))
        }
        "isupper" => {
            text.chars().any(char::is_uppercase)
                && !text.chars().any(|c| c.is_lowercase() || unicode::is_title(c))
        }
        _ => is_titled(text),
    }
}

fn is_titled(text: &str) -> bool {
    let (mut any, mut after_cased) = (false, false);
    for c in text.chars() {
        let is_upper = c.is_uppercase() || unicode::is_title(c);
        if is_upper == after_cased && unicode::is_cased(c) {
            return false;
        }
        after_cased = unicode::is_cased(c);
        any |= after_cased;
    }
    any
}

/// Characters that an instruction looks up in a table.
const LOOK_UPS_PER_INSTRUCTION: usize = 32;

/// Translates with a dict from code points to strings, code points or None.
fn translate(text: &Text, args: Args) -> Res<Value> {
    let given = args.plain("translate", 1)?;
    let Some(Value::Dict(table)) = given.first() else {
        return fail("translate() takes one mapping");
    };
    charge((text.text.len() / LOOK_UPS_PER_INSTRUCTION) as u64)?;
    let mut out = String::new();
    for c in text.text.chars() {
        match look_up(table, c)? {
            None => out.push(c),
            Some(Value::None) => {}
            Some(Value::Str(new)) => {
                charge_work(new.text.len() + out.len() / 64)?;
                out.push_str(&new.text);
            }
            Some(other) => match u32::try_from(ops::small(&other)?).ok().and_then(char::from_u32) {
                Some(c) => out.push(c),
                None => return fail("character mapping must be in range(0x110000)"),
            },
        }
    }
    Ok(Value::str_like(out, text))
}

fn look_up(table: &Dict, c: char) -> Res<Option<Value>> {
    Ok(table.get(&Value::Int(i64::from(u32::from(c))))?.cloned())
}
