use super::gbnf::{is_gbnf, to_lark};
use super::tests::{of_kind, takes};
use super::Kind;

const SQL: &str = r#"
    root ::= select_statement
    select_statement ::= "SELECT " column " from " table " where " condition
    column ::= "col_1 " | "col_2 "
    table ::= "table_1 " | "table_2 "
    condition ::= column "= " number
    number ::= "1 " | "2 "
"#;

#[test]
fn the_grammar_of_vllms_examples_is_followed() {
    let grammar = of_kind(Kind::Lark, SQL);
    assert!(takes(&grammar, "SELECT col_1  from table_2  where col_2 = 1 "));
    assert!(!takes(&grammar, "SELECT col_3  from table_2  where col_2 = 1 "));
}

#[test]
fn every_form_of_item_is_read() {
    let cases: &[(&str, &[&str], &[&str])] = &[
        ("root ::= \"a\\n\\x41\\u00e9\\\"/\"", &["a\nA\u{e9}\"/"], &["a"]),
        ("root ::= [a-cx-]+ # comment\n", &["abc-x"], &["d", ""]),
        ("root ::= [^\"\\\\]{2,3} \"\\\"\"", &["ab\"", "abc\"", "\n/\""], &["a\"", "abcd\""]),
        ("root ::= . [\\]\\t]?", &["x", "\n]", "\u{e9}\t"], &["xy"]),
        ("root ::= (\"a\" | b-2)* \"!\"\nb-2 ::= \"b\"", &["!", "abab!"], &["ab"]),
        ("root ::= \"a\"\n  | \"b\" tail\ntail ::= \"c\" | ", &["a", "b", "bc"], &["ac"]),
        ("ws ::= \" \"{2}\nroot ::= ws \"\" Start\nStart ::= \"x\"{1,}", &["  xx"], &[" x"]),
    ];
    for (text, good, bad) in cases {
        assert!(is_gbnf(text), "{text}");
        let grammar = of_kind(Kind::Lark, text);
        for answer in *good {
            assert!(takes(&grammar, answer), "{text}: {answer:?}");
        }
        for answer in *bad {
            assert!(!takes(&grammar, answer), "{text}: {answer:?}");
        }
    }
}

#[test]
fn a_fault_says_its_line() {
    for (text, part) in [
        ("root ::= \"a", "line 1: a '\"' is missing"),
        ("root ::= a\nb ::= \"b\"", "line 1: there is no rule 'a'"),
        ("a ::= \"b\"", "there is no rule 'root'"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule 'root' is there twice"),
        ("root ::= (\"a\"", "line 1: a ')' is missing"),
        ("root ::= [z-a]", "line 1: a range of characters runs backwards"),
        ("root ::= []", "line 1: a class of characters is empty"),
        ("root ::= \"a\"{x}", "line 1: a repetition is {m}, {m,} or {m,n}"),
        ("root ::= \"a\"\n\n%", "line 3: '%' begins no item"),
        ("root ::= \"\\q\"", "line 1: an escape is"),
        ("root ::= \"\\x4\"", "line 1: 2 hexadecimal digits"),
        ("root ::= )", "line 1: a rule 'name ::= ..' must begin here"),
        ("root ::= <|im_start|>", "line 1: '<' begins no item"),
        ("\n\nroot ::= a\n\n\na ::= b\n\nc ::= a", "line 6: there is no rule 'b'"),
    ] {
        let message = to_lark(text).unwrap_err().message;
        assert!(message.starts_with("the grammar: ") && message.contains(part), "{message}");
    }
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(100), ")".repeat(100));
    assert!(to_lark(&deep).unwrap_err().message.contains("deeper than 64 levels"));
    assert!(!is_gbnf("start: \"::=\""));
}
