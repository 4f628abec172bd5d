//! Regular expressions that the rewrite for llguidance would change, and those that it would not.

use serde_json::{json, Value};

use super::tests::{of_kind, refusal, strict, takes};
use super::Kind;
use crate::Code;

#[test]
fn an_expression_that_the_rewrite_would_change_is_refused() {
    for (bad, why) in [
        ("a\\", "backslash"),
        ("a\\\\\\", "backslash"),
        ("(?x)a # letter\nb", "flag x"),
        ("a(?ix-s:b)", "flag x"),
        ("[^a](?x)]*(?x)a", "flag x"),
    ] {
        let failure = refusal(Kind::Regex, bad);
        assert_eq!(failure.code, Code::InvalidArgument, "{bad}");
        assert!(failure.message.contains(why), "{bad}: {}", failure.message);
        let schema = json!({"type": "string", "pattern": bad});
        let failure = refusal(Kind::SchemaStrict, &schema.to_string());
        assert!(failure.message.contains(why), "{bad}: {}", failure.message);
    }
}

#[test]
fn what_only_looks_like_one_is_kept() {
    for (pattern, good, bad) in [
        ("a\\\\", "a\\", "a"),
        ("[(?x)]", "x", "y"),
        ("\\(\\?x\\)", "(?x)", "x"),
        ("(?i)x", "X", "y"),
        ("(?-x)a b", "a b", "ab"),
        ("(?P<x>a)", "a", "x"),
    ] {
        let kept = of_kind(Kind::Regex, pattern);
        assert!(takes(&kept, good) && !takes(&kept, bad), "{pattern}");
    }
}

/// By ECMA-262 (and Python) each character of a class stands for itself. The parser of llguidance
/// has classes within classes and operators between them.
#[test]
fn a_pattern_has_the_classes_of_ecma_262() {
    for (pattern, good, bad) in [
        (r"^[a-z&&[^aeiou]]+$", vec!["b]", "&]", "[]]"], vec!["b", "bc"]),
        (r"^[^[\]]+$", vec!["ab"], vec!["[", "]"]),
        (r"^[~~]$", vec!["~"], vec!["", "a"]),
        (r"^[!--]{2}$", vec!["!-", "+,"], vec!["a-", "."]),
        (r"^[+-\d]+$", vec!["+1", "-2"], vec!["/", "*", "+1]"]),
        (r"^[\w-.]+$", vec!["a-b.c"], vec!["a/b"]),
        (r"^[\d-x]+$", vec!["1-x"], vec!["w"]),
        (r"^[a-]$", vec!["a", "-"], vec!["b"]),
        (r"^[-a]$", vec!["a", "-"], vec!["b"]),
        (r"^[a-c-e]+$", vec!["b-e"], vec!["d"]),
        (r"^[\^^]$", vec!["^"], vec!["a"]),
        (r"^[\x41-\x43\u0045]$", vec!["B", "E"], vec!["D", "x"]),
        (r"^[\D-]$", vec!["a", "-"], vec!["1"]),
        (r"^[^\D]$", vec!["1"], vec!["a"]),
        (r"^[\p{Lu}-z]$", vec!["A", "-", "z"], vec!["a"]),
        (r"^[\\-\]]$", vec!["\\", "]"], vec!["^", "-"]),
        (r"^[:a]$", vec![":", "a"], vec!["b"]),
        (r"^[:a:]$", vec![":", "a"], vec!["b"]),
        (r"^\<b\>$", vec!["<b>"], vec!["b"]),
        (r"^[\<]$", vec!["<"], vec!["b", "\\"]),
        ("^a.c$", vec!["abc", "a\u{85}c"], vec!["a\nc", "a\rc", "a\u{2028}c", "a\u{2029}c"]),
        ("^(?s:a.c)$", vec!["a\rc", "a\nc"], vec!["ac"]),
        (r"^\s$", vec![" ", "\t", "\u{a0}", "\u{2029}", "\u{feff}"], vec!["\u{85}", "\u{200b}"]),
        (r"^\S$", vec!["\u{85}", "\u{200b}", "s"], vec![" ", "\n", "\u{3000}", "\u{feff}"]),
        (r"^[\s-x]+$", vec!["\u{feff}-x", "\n "], vec!["\u{85}", "w"]),
        (r"^[^\s]$", vec!["\u{85}", "s"], vec![" ", "\u{feff}"]),
        (r"^[\S\n]$", vec!["\n", "\u{85}"], vec![" ", "\u{feff}"]),
    ] {
        let schema = strict(&json!({"type": "string", "pattern": pattern}));
        let names = json!({"patternProperties": {pattern: true}, "additionalProperties": false});
        let names = strict(&json!({"type": "object", "allOf": [names]}));
        let inside = strict(&json!({"type": "object", "propertyNames": {"pattern": pattern}}));
        for (is_good, text) in
            good.iter().map(|text| (true, text)).chain(bad.iter().map(|text| (false, text)))
        {
            let written = Value::from(*text).to_string();
            assert_eq!(takes(&schema, &written), is_good, "{pattern} {text:?}");
            let object = format!("{{{written}: 1}}");
            assert_eq!(takes(&names, &object), is_good, "{pattern} {text:?}");
            assert_eq!(takes(&inside, &object), is_good, "{pattern} {text:?}");
        }
    }
}

#[test]
fn classes_that_languages_read_in_different_ways_are_refused_in_a_pattern() {
    for (pattern, why) in [
        (r"^[[:alpha:]]+$", "[:alpha:]"),
        (r"^[^[:space:]x]+$", "[:alpha:]"),
        (r"^[]a]$", "write"),
        (r"^[^]]+$", "write"),
    ] {
        let schema = json!({"type": "string", "pattern": pattern});
        let failure = refusal(Kind::SchemaStrict, &schema.to_string());
        assert_eq!(failure.code, Code::InvalidArgument, "{pattern}");
        assert!(failure.message.starts_with("#/pattern: "), "{pattern}: {}", failure.message);
        assert!(failure.message.contains(why), "{pattern}: {}", failure.message);
    }
    let patterns = json!({"^.$": true, r"^[^\n\r\u2028\u2029]$": true});
    let twice = json!({"type": "object", "patternProperties": patterns});
    let failure = refusal(Kind::SchemaStrict, &twice.to_string());
    assert!(failure.message.contains("another pattern"), "{}", failure.message);
}

#[test]
fn an_expression_for_an_answer_keeps_the_classes_of_llguidance() {
    for (pattern, good, bad) in [
        (r"[a-z&&[^aeiou]]+", "bcd", "a"),
        (r"[a-z--[b]]", "a", "b"),
        (r"[[:alpha:]]+", "abc", "a1"),
        (r"[^]]+", "ab", "a]"),
        (r"[]a]+", "a]", "b"),
        (r"[+-\d]+", "+-1", "+1]"),
        (r"[\d-x]+", "1-x", "w"),
        (r"[\w--\d]", "a", "1"),
        (r"a.c", "a\rc", "a\nc"),
        (r"\<b\>", "<b>", "b"),
        (r"[^](?x)]*a", "bca", "ba)a"),
    ] {
        let kept = of_kind(Kind::Regex, pattern);
        assert!(takes(&kept, good), "{pattern}");
        assert!(!takes(&kept, bad), "{pattern}");
    }
}

/// llguidance has look-ahead as a group of this name.
#[test]
fn a_group_may_have_any_name() {
    for pattern in [r"(?<start>\d+)-(?<stop>\d+)", r"(?P<start>\d+)-(?P<stop>\d+)x?"] {
        let kept = of_kind(Kind::Regex, pattern);
        assert!(takes(&kept, "12-345") && !takes(&kept, "12-"), "{pattern}");
        let schema = strict(&json!({"type": "string", "pattern": format!("^{pattern}$")}));
        assert!(takes(&schema, "\"12-345\"") && !takes(&schema, "\"12-\""), "{pattern}");
    }
}

/// Each would take minutes if a part of it were looked through to its end.
#[test]
fn an_expression_is_read_once() {
    let schema = |pattern: &str| json!({"type": "string", "pattern": pattern}).to_string();
    for part in ["[", "[:", "(?", "(?x", "\\x{", "[\\p{"] {
        let many = part.repeat(150_000);
        for (kind, text) in [(Kind::Regex, many.clone()), (Kind::SchemaStrict, schema(&many))] {
            let failure = refusal(kind, &text);
            let why = &failure.message;
            assert!(!why.contains("processor time"), "{part}: {why}");
        }
    }
}
