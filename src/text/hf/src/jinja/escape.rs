//! markupsafe's escape and striptags.

use super::error::{charge_work, Res};
use super::unicode;

pub fn escape(text: &str) -> Res<String> {
    charge_work(text.len().saturating_mul(2))?;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            _ => out.push(c),
        }
    }
    Ok(out)
}

/// Cuts `<!-- -->` and `<...>` out and makes each run of blanks one.
pub fn strip_tags(text: &str) -> Res<String> {
    charge_work(text.len())?;
    let without = |text: &str, open: &str, close: &str| {
        let mut out = String::new();
        let mut rest = text;
        while let Some(begin) = rest.find(open) {
            let Some(end) = rest[begin..].find(close) else { break };
            out.push_str(&rest[..begin]);
            rest = &rest[begin + end + close.len()..];
        }
        out.push_str(rest);
        out
    };
    let plain = without(&without(text, "<!--", "-->"), "<", ">");
    let words: Vec<&str> = plain.split(unicode::is_space).filter(|w| !w.is_empty()).collect();
    Ok(unescape(&words.join(" ")))
}

/// "&quot;"
const MAX_NAME_BYTES: usize = 6;

/// The entities that escape makes, and those of numbers as HTML 5 has them (Python's
/// html.unescape).
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        rest = match named(rest).or_else(|| numbered(rest)) {
            Some((c, len)) => {
                out.extend(c);
                &rest[len..]
            }
            None => {
                out.push('&');
                &rest[1..]
            }
        };
    }
    out.push_str(rest);
    out
}

/// The character of a name at the beginning of `text`, and the bytes of the entity.
fn named(text: &str) -> Option<(Option<char>, usize)> {
    // Only so far: a text of many '&' is not searched to its end for each of them.
    let end = text.bytes().take(MAX_NAME_BYTES).position(|b| b == b';')?;
    let c = match &text[1..end] {
        "amp" => '&',
        "lt" => '<',
        "gt" => '>',
        "quot" => '"',
        "apos" => '\'',
        "nbsp" => '\u{a0}',
        _ => return None,
    };
    Some((Some(c), end + 1))
}

/// A reference by number, whose semicolon may be missing; no character where the number is of one
/// that HTML leaves out.
fn numbered(text: &str) -> Option<(Option<char>, usize)> {
    let number = text.strip_prefix("&#")?;
    let hex = number.strip_prefix(['x', 'X']);
    let (digits, radix) = hex.map_or((number, 10), |digits| (digits, 16));
    let num_digits = digits.bytes().take_while(|b| char::from(*b).is_digit(radix)).count();
    if num_digits == 0 {
        return None;
    }
    // More digits than 32 bits hold are of no character, like each number above 0x10ffff.
    let code = digits[..num_digits].bytes().fold(0u32, |code, digit| {
        let value = char::from(digit).to_digit(radix).unwrap_or(0);
        code.saturating_mul(radix).saturating_add(value)
    });
    let mut len = text.len() - digits.len() + num_digits;
    if text[len..].starts_with(';') {
        len += 1;
    }
    Some((char_of(code), len))
}

/// Windows-1252, which pages that say 128..159 mean.
const WINDOWS: [char; 32] = [
    '\u{20ac}', '\u{81}', '\u{201a}', '\u{192}', '\u{201e}', '\u{2026}', '\u{2020}', '\u{2021}',
    '\u{2c6}', '\u{2030}', '\u{160}', '\u{2039}', '\u{152}', '\u{8d}', '\u{17d}', '\u{8f}',
    '\u{90}', '\u{2018}', '\u{2019}', '\u{201c}', '\u{201d}', '\u{2022}', '\u{2013}', '\u{2014}',
    '\u{2dc}', '\u{2122}', '\u{161}', '\u{203a}', '\u{153}', '\u{9d}', '\u{17e}', '\u{178}',
];

fn char_of(code: u32) -> Option<char> {
    match code {
        0 => Some('\u{fffd}'),
        0x80..=0x9f => Some(WINDOWS[(code - 0x80) as usize]),
        0x1..=0x8 | 0xb | 0xe..=0x1f | 0x7f | 0xfdd0..=0xfdef => None,
        _ if code <= 0x10_ffff && code & 0xfffe == 0xfffe => None,
        _ => Some(char::from_u32(code).unwrap_or('\u{fffd}')),
    }
}
