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

/// "&#1114111;" and a byte.
const MAX_ENTITY_BYTES: usize = 11;

/// The entities that escape makes, and those of numbers.
fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        // Only so far: a text of many '&' is not searched to its end for each of them.
        let Some(end) = rest.bytes().take(MAX_ENTITY_BYTES).position(|b| b == b';') else {
            out.push('&');
            rest = &rest[1..];
            continue;
        };
        let name = &rest[1..end];
        let number = name.strip_prefix("#x").or(name.strip_prefix("#X"));
        let code = match number {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => name.strip_prefix('#').and_then(|digits| digits.parse().ok()),
        };
        let c = match name {
            "amp" => Some('&'),
            "lt" => Some('<'),
            "gt" => Some('>'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            "nbsp" => Some('\u{a0}'),
            _ => code.and_then(char::from_u32),
        };
        match c {
            Some(c) => {
                out.push(c);
                rest = &rest[end + 1..];
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}
