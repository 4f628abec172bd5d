//! Regular expressions in the form that llguidance takes.

use llguidance::derivre::{RegexAst, RegexBuilder};
use llguidance::regex_to_lark;

/// `pattern` with the classes of `ascii` (letters of `dws`) as ASCII. Refuses what the rewrite
/// would change in meaning: it drops a backslash at the end, and writes a line break and the space
/// of `\s` as characters, which the flag `x` would skip.
pub fn rewritten(pattern: &str, ascii: &str) -> Result<String, String> {
    let mut chars = pattern.char_indices();
    let mut class_depth = 0;
    while let Some((at, c)) = chars.next() {
        let rest = &pattern[at..];
        match c {
            '\\' if chars.next().is_none() => {
                return Err("it ends with a backslash, which escapes nothing".to_string());
            }
            '[' => {
                class_depth += 1;
                // The first bracket after this one is a character of the class.
                let num_skipped = match rest {
                    _ if rest.starts_with("[^]") => 2,
                    _ if rest.starts_with("[]") => 1,
                    _ => 0,
                };
                for _ in 0..num_skipped {
                    chars.next();
                }
            }
            ']' if class_depth > 0 => class_depth -= 1,
            '(' if class_depth == 0 && sets_x(rest) => {
                return Err("the flag x is not supported; leave out the spaces and comments that \
                            it skips"
                    .to_string());
            }
            _ => {}
        }
    }
    Ok(regex_to_lark(pattern, ascii))
}

/// As `rewritten`; refuses what is no regular expression of llguidance either.
pub fn checked(pattern: &str, ascii: &str) -> Result<String, String> {
    let rewritten = rewritten(pattern, ascii)?;
    let ast = RegexAst::SearchRegex(rewritten.clone());
    RegexBuilder::new().mk(&ast).map_err(|e| {
        let reason = e.to_string();
        reason.lines().last().unwrap_or_default().to_string()
    })?;
    Ok(rewritten)
}

/// Whether a text begins with a group that turns the flag x on: `(?x)`, `(?ix-s:`.
fn sets_x(text: &str) -> bool {
    let Some(flags) = text.strip_prefix("(?") else { return false };
    let Some(end) = flags.find([':', ')']) else { return false };
    let is_flag = |c: char| c.is_ascii_alphabetic() || c == '-';
    flags[..end].chars().all(is_flag) && flags[..end].split('-').next().unwrap_or("").contains('x')
}
