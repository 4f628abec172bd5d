//! Regular expressions that the rewrite for llguidance would change, and those that it would not.

use serde_json::json;

use super::tests::{of_kind, refusal, takes};
use super::Kind;
use crate::Code;

#[test]
fn an_expression_that_the_rewrite_would_change_is_refused() {
    for (bad, why) in [
        ("a\\", "backslash"),
        ("a\\\\\\", "backslash"),
        ("(?x)a # letter\nb", "flag x"),
        ("a(?ix-s:b)", "flag x"),
        ("[^](?x)]*(?x)a", "flag x"),
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
