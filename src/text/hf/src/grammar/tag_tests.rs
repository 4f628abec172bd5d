//! Texts of parameters that stand between tags, and how many tags there may be.

use serde_json::{json, Value};

use super::tests::{of_kind, takes};
use super::Kind;

#[test]
fn texts_in_tags_have_their_lengths() {
    let grammar_of = |text: Value| {
        let tag = json!({"at_least_one": true, "max_tags": 1, "structures": [{
            "begin": "<f>", "end": "</f>", "content": "qwen_xml", "schema": {"type": "object",
                "required": ["s"], "properties": {"s": text, "n": {"type": "integer"}}}}]});
        of_kind(Kind::StructuralTag, &tag.to_string())
    };
    let of = |text: &str| format!("<f><parameter=s>\n{text}\n</parameter>\n</f>");
    let long = "x".repeat(2000);
    let long = long.as_str();
    for (schema, good, bad) in [
        (
            json!({"type": "string", "minLength": 2, "maxLength": 3}),
            vec!["ab", "abc", "\u{e9}\u{e8}\u{ea}", "a\n", "<p>"],
            vec!["", "a", "abcd", long],
        ),
        (json!({"type": "string", "maxLength": 2}), vec!["", "a", "ab"], vec!["abc", "\n\n\n"]),
        (json!({"type": "string", "minLength": 2}), vec!["ab", long], vec!["", "a"]),
        (json!({"type": "string", "maxLength": 100_000}), vec!["", long], vec![]),
    ] {
        let grammar = grammar_of(schema.clone());
        for text in good {
            assert!(takes(&grammar, &of(text)), "{schema} {text:?}");
        }
        for text in bad {
            assert!(!takes(&grammar, &of(text)), "{schema} {text:?}");
        }
    }
    let grammar = grammar_of(json!({"type": "string", "minLength": 30}));
    let short = "a\n</parameter>\n<parameter=n>\n1";
    assert!(!takes(&grammar, &of(short)), "what follows a text that is too short is no part of it");
}

#[test]
fn a_tag_has_as_many_structures_as_a_request_has_tools() {
    let structures: Vec<Value> = (0..1024)
        .map(|i| json!({"begin": format!("<c>f{i} "), "end": "</c>", "schema": {"const": i}}))
        .collect();
    let tag = json!({"at_least_one": true, "max_tags": 1, "structures": structures});
    let grammar = of_kind(Kind::StructuralTag, &tag.to_string());
    assert!(takes(&grammar, "<c>f1023 1023</c>"));
    assert!(!takes(&grammar, "<c>f1023 1022</c>"));
}
