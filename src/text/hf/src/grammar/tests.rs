use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{json, Value};

use super::*;
use crate::budget::Bounds;
use crate::{Code, Failure};

const END: u32 = 256;
const CONTROL: u32 = 257;
const NUM_TOKENS: usize = 265;

pub const LIMITS: Limits = Limits {
    max_text_bytes: 1 << 20,
    max_values: 100_000,
    max_enum_values: 10_000,
    max_refs: 1_000,
    max_depth: 64,
    bounds: Bounds { memory_bytes: 1 << 30, timeout: Duration::from_millis(20_000) },
};

/// A token for each byte, the end, a control token, and some longer ones (two of them equal).
pub fn bytes_vocabulary() -> Arc<Vocabulary> {
    let singles: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let mut tokens: Vec<&[u8]> = singles.iter().map(|byte| byte.as_slice()).collect();
    let long = [b'a'; 300];
    tokens.extend([b"" as &[u8], b"", b"{\"", b"\":", b"\"a\"", b"true", b"  ", b"a", &long]);
    assert_eq!(tokens.len(), NUM_TOKENS);
    Arc::new(Vocabulary::new(&tokens, &[END]).unwrap())
}

fn compiled(kind: Kind, text: &str) -> Result<Arc<Grammar>, Failure> {
    compile(&bytes_vocabulary(), kind, text, &LIMITS).map(Arc::new)
}

pub fn of_kind(kind: Kind, text: &str) -> Arc<Grammar> {
    compiled(kind, text).unwrap_or_else(|f| panic!("{text}: {}", f.message))
}

pub fn strict(schema: &Value) -> Arc<Grammar> {
    of_kind(Kind::SchemaStrict, &schema.to_string())
}

pub fn refusal(kind: Kind, text: &str) -> Failure {
    match compiled(kind, text) {
        Ok(_) => panic!("{} was taken", &text[..text.len().min(200)]),
        Err(failure) => {
            let known = matches!(failure.code, Code::InvalidArgument | Code::Limit);
            assert!(known, "{}", failure.message);
            assert!(failure.message.len() < 1200 && !failure.message.contains('\n'));
            failure
        }
    }
}

fn refused(schema: &Value) -> String {
    refusal(Kind::SchemaStrict, &schema.to_string()).message
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

/// Whether `text` is a whole answer of the grammar: the end may follow all of its tokens.
pub fn takes(grammar: &Arc<Grammar>, text: &str) -> bool {
    let mut state = State::new(grammar);
    let tokens = ids(text);
    state.accept(&tokens).unwrap() == tokens.len()
        && (state.is_stopped() || state.accept(&[END]).unwrap() == 1)
}

/// How many bytes of `text` an answer may begin with.
pub fn num_taken(grammar: &Arc<Grammar>, text: &str) -> usize {
    State::new(grammar).accept(&ids(text)).unwrap()
}

fn mask_of(state: &mut State) -> Vec<u32> {
    let mut words = vec![u32::MAX; NUM_TOKENS.div_ceil(32) + 2];
    state.mask(&mut words).unwrap_or_else(|f| panic!("{}", f.message));
    (0..words.len() as u32 * 32).filter(|i| words[*i as usize / 32] >> (i % 32) & 1 == 1).collect()
}

#[test]
fn values_are_taken_as_the_standard_says() {
    for (schema, good, bad) in [
        (json!({"type": "integer"}), vec!["0", "-7", "12"], vec!["01", "1.5", "", "a"]),
        (json!({"type": "number"}), vec!["1e2", "1.5E+2", "-0.0", "7"], vec!["1.", ".5", "+1"]),
        (json!({"type": "string"}), vec![r#""é""#, r#""\u00e9""#, r#""\ud83d\ude00""#], vec!["é"]),
        (json!({"type": "string"}), vec![r#""\n\"\\""#], vec![r#""\ud83d""#, "\"\n\"", r#""\x""#]),
        (
            json!({"type": "string", "maxLength": 1}),
            vec!["\"😀\"", r#""\ud83d\ude00""#, "\"\""],
            vec!["\"ab\""],
        ),
        (json!({"type": "string", "pattern": "a"}), vec!["\"bab\""], vec!["\"b\""]),
        (json!({"type": "string", "pattern": "^\\d{2}$"}), vec!["\"12\""], vec!["\"123\""]),
        (json!({"type": ["integer", "null"]}), vec!["null", "1"], vec!["\"a\""]),
        (json!({"enum": [1, "a", null, {"b": [true]}]}), vec!["{\"b\":[true]}"], vec!["2"]),
        (json!({"const": "é"}), vec!["\"é\""], vec!["\"e\""]),
        (json!({"allOf": [{"type": "integer"}, {"minimum": 3}]}), vec!["3"], vec!["2"]),
        (json!({"anyOf": [{"type": "integer"}, {"type": "null"}]}), vec!["3", "null"], vec!["a"]),
        (
            json!({"type": "array", "items": {"type": "null"}, "maxItems": 2}),
            vec!["[]", "[null,null]"],
            vec!["[1]", "[null,null,null]"],
        ),
        (json!({"multipleOf": 0.1}), vec!["0.3"], vec!["0.35"]),
        (json!({}), vec!["null", "[1,{}]", "\"a\""], vec!["nul"]),
        (json!(true), vec!["1"], vec!["]"]),
        (
            json!({"exclusiveMinimum": 0, "exclusiveMaximum": 1, "type": "number"}),
            vec!["0.5"],
            vec!["0", "1", "-1"],
        ),
    ] {
        let grammar = strict(&schema);
        good.iter().for_each(|text| assert!(takes(&grammar, text), "{schema}: {text}"));
        bad.iter().for_each(|text| assert!(!takes(&grammar, text), "{schema}: {text}"));
    }
}

/// NOTES.md lists these; a row that fails here is a difference that has gone.
#[test]
fn differences_from_the_standard_are_the_listed_ones() {
    for (schema, valid) in [
        (json!({"type": "number", "minimum": 0}), "1e2"),
        (json!({"type": "integer"}), "1.0"),
        (json!({"type": "integer"}), "1e2"),
        (json!({"type": "integer", "minimum": 0}), "-0"),
        (json!({"type": "number", "multipleOf": 2}), "4.0"),
        (json!({"const": 1}), "1.0"),
        (json!({"const": "é"}), r#""\u00e9""#),
        (json!({"type": "string"}), r#""a\/b""#),
        (json!({"properties": {"a": {}, "b": {}}}), r#"{"b":1,"a":2}"#),
        (json!({"properties": {"a": {}}}), r#"{"c":1,"a":2}"#),
        (json!({"properties": {"a": {}}}), r#"{"a":2,"c":1}"#),
        (json!({"type": "object"}), "{  }"),
        (json!({"type": "object"}), "{ }"),
        (json!({"type": "object"}), r#"{"a" :1}"#),
        (json!({"type": "object"}), " {}"),
        (json!({"type": "object"}), "{}\n"),
    ] {
        assert!(!takes(&strict(&schema), valid), "{schema}: {valid} is taken now");
    }
    for (schema, invalid) in [(json!({"type": "string", "format": "date"}), "\"2023-02-29\"")] {
        assert!(takes(&strict(&schema), invalid), "{schema}: {invalid} is refused now");
    }
}

#[test]
fn properties_come_in_their_own_order_not_that_of_required() {
    let person = json!({"type": "object", "properties": {"z": {"type": "integer"},
        "a": {"type": "integer"}}, "required": ["a", "z"], "additionalProperties": false});
    let grammar = strict(&person);
    assert!(takes(&grammar, r#"{"z":1,"a":2}"#));
    assert!(!takes(&grammar, r#"{"a":2,"z":1}"#));
    let begin = ids("{");
    let mut state = State::new(&grammar);
    state.accept(&begin).unwrap();
    state.accept(&ids("\"")).unwrap();
    assert_eq!(mask_of(&mut state), [b'z' as u32]);
}

#[test]
fn what_zod_and_pydantic_send_is_taken() {
    let safe = 9_007_199_254_740_991i64;
    let zod = json!({"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
        "properties": {"n": {"type": "integer", "minimum": -safe, "maximum": safe}},
        "required": ["n"], "additionalProperties": false});
    assert!(takes(&strict(&zod), r#"{"n": -9007199254740991}"#));
    assert!(!takes(&strict(&zod), r#"{"n": 9007199254740992}"#));
    let pydantic = json!({"title": "Tree", "type": "object", "$defs": {"Node": {"type": "object",
        "properties": {"next": {"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}],
        "default": null}}, "additionalProperties": false}}, "properties": {"root":
        {"$ref": "#/$defs/Node", "description": "The root."}}, "required": ["root"]});
    assert!(takes(&strict(&pydantic), r#"{"root":{"next":{"next":null}}}"#));
    let draft4 = json!({"$schema": "http://json-schema.org/draft-04/schema#", "const": 1});
    assert!(!takes(&strict(&draft4), "2"), "$schema must not turn keywords off");
}

#[test]
fn whitespace_is_bounded() {
    let grammar = of_kind(Kind::JsonObject, "");
    assert!(takes(&grammar, "{\"a\": 1, \"b\":2,\"c\": [1, 2,3]}"));
    assert!(takes(&grammar, "{\n  \"a\": [\r\n        1\n\t],\n  \"b\": {\n  }\n}"));
    for blank in [" ", "  ", "\n\n", "\t", " \n"] {
        assert!(!takes(&grammar, &format!("{{{blank}\"a\":1}}")), "{blank:?}");
    }
    for text in ["{\"a\" : 1}", "{\"a\":  1}", "{\"a\":\t1}", "{\"a\":1 ,\"b\":1}", "{\"a\":1 }"] {
        assert!(!takes(&grammar, text), "{text:?}");
    }
    let mut state = State::new(&grammar);
    state.accept(&ids("{\n")).unwrap();
    assert_eq!(state.accept(&[b' ' as u32; 100]).unwrap(), 40);
    assert!(!takes(&grammar, "[]"), "an object is asked for");
}

#[test]
fn references_are_looked_up_inside_of_the_schema() {
    for schema in [
        json!({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "integer"}}}),
        json!({"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "integer"}}}),
        json!({"$ref": "#/components/x/1", "components": {"x": [0, {"type": "integer"}]},
            "x-ignored": 1}),
        json!({"$ref": "#here", "$defs": {"q": {"$anchor": "here", "type": "integer"}}}),
        json!({"$ref": "#/definitions/a", "definitions": {"a": {"$ref": "#/definitions/b"},
            "b": {"type": "integer"}}}),
        json!({"$ref": "#/$defs/a", "minimum": 0, "$defs": {"a": {"type": "integer"}}}),
    ] {
        let loose = of_kind(Kind::SchemaLoose, &schema.to_string());
        assert!(takes(&loose, "1") && !takes(&loose, "\"a\""), "{schema}");
    }
    let list = json!({"type": "object", "properties": {"n": {"$ref": "#"}},
        "additionalProperties": false});
    assert!(takes(&strict(&list), r#"{"n":{"n":{}}}"#));
    assert_eq!(refused(&json!({"$ref": "#"})), "#: $ref leads to itself");
    for key in ["allOf", "anyOf", "oneOf"] {
        assert_eq!(refused(&json!({ key: [{"$ref": "#"}]})), "#: $ref leads to itself");
    }
    let cycle = json!({"properties": {"p": {"$ref": "#/$defs/a"}}, "$defs":
        {"a": {"$ref": "#/$defs/b"}, "b": {"allOf": [{"$ref": "#/$defs/a"}]}}});
    assert_eq!(refused(&cycle), "#/$defs/a: $ref leads to itself");
    assert!(refused(&json!({"items": {"$ref": "http://x/y"}})).starts_with("#/items/$ref: "));
    let missing = refused(&json!({"$ref": "#/$defs/none"}));
    assert_eq!(missing, "#/$ref: the schema has no \"#/$defs/none\"");
}

#[test]
fn a_bad_value_of_a_keyword_names_its_place() {
    for (schema, place) in [
        (json!({"type": "int"}), "#/type: "),
        (json!({"type": []}), "#/type: "),
        (json!({"properties": {"a/b": {"minLength": -1}}}), "#/properties/a~1b/minLength: "),
        (json!({"items": [1]}), "#/items/0: "),
        (json!({"items": 3}), "#/items: "),
        (json!({"anyOf": []}), "#/anyOf: "),
        (json!({"enum": []}), "#/enum: "),
        (json!({"enum": "a"}), "#/enum: "),
        (json!({"required": [1]}), "#/required: "),
        (json!({"maxItems": 1.5}), "#/maxItems: "),
        (json!({"minimum": "0"}), "#/minimum: "),
        (json!({"multipleOf": 0}), "#/multipleOf: "),
        (json!({"pattern": 3}), "#/pattern: "),
        (json!({"$ref": 3}), "#/$ref: "),
        (json!({"$defs": 3}), "#/$defs: "),
        (json!([]), "#: "),
        (json!("a"), "#: "),
        (json!(null), "#: "),
        (json!({"properties": {"a\nb": 1}}), "#/properties/a%0Ab: "),
    ] {
        let message = refused(&schema);
        assert!(message.starts_with(place), "{schema}: {message}");
        let loose = refusal(Kind::SchemaLoose, &schema.to_string()).message;
        assert_eq!(loose, message, "a wrong form is wrong in both");
    }
    assert!(takes(&strict(&json!({"type": "array", "minItems": 1.0})), "[1]"));
}

#[test]
fn text_that_is_no_json_says_where() {
    for (text, part) in [
        ("", "EOF"),
        ("{", "line 1 column 1"),
        ("{\"a\":1,\n\"a\":2}", "the key \"a\" stands twice in an object at line 2"),
        ("{\"minimum\":1e999}", "number out of range"),
        ("{\"minimum\":NaN}", "line 1"),
        ("{} {}", "trailing"),
        ("{\"title\":\"\\ud800\"}", "line 1"),
    ] {
        let failure = refusal(Kind::SchemaStrict, text);
        assert_eq!(failure.code, Code::InvalidArgument);
        assert!(failure.message.contains(part), "{text}: {}", failure.message);
    }
    let deep = "[".repeat(100_000);
    assert!(refusal(Kind::SchemaStrict, &deep).message.contains("recursion limit"));
}

#[test]
fn unsupported_keywords_are_refused_or_listed_with_their_places() {
    for (schema, place) in [
        (json!({"not": {"const": 1}}), "#/not"),
        (json!({"if": {}}), "#/if"),
        (json!({"contains": {}}), "#/contains"),
        (json!({"propertyNames": {"maxLength": 1}}), "#/propertyNames"),
        (json!({"dependentRequired": {"a": ["b"]}}), "#/dependentRequired"),
        (json!({"allOf": [true], "unevaluatedProperties": false}), "#/unevaluatedProperties"),
        (json!({"nullable": true}), "#/nullable"),
        (json!({"minimun": 1}), "#/minimun"),
        (json!({"properties": {"a": {"uniqueItems": true}}}), "#/properties/a/uniqueItems"),
        (json!({"type": "string", "format": "iri"}), "#/format"),
        (json!({"type": "string", "pattern": "(?=a)b"}), "#/pattern"),
        (json!({"type": "number", "multipleOf": 1_000_003}), "#/multipleOf"),
        (json!({"const": 9_007_199_254_740_993u64}), "#/const"),
        (json!({"patternProperties": {"(?!a)": {}}}), "#/patternProperties/(?!a)"),
    ] {
        let message = refused(&schema);
        assert!(message.starts_with(&format!("{place}: ")), "{schema}: {message}");
        let loose = of_kind(Kind::SchemaLoose, &schema.to_string());
        assert_eq!(loose.ignored, [place], "{schema}");
    }
    let quiet = json!({"title": "t", "description": "d", "default": 1, "examples": [1],
        "deprecated": true, "x-order": 1, "uniqueItems": false, "readOnly": true});
    assert!(of_kind(Kind::SchemaLoose, &quiet.to_string()).ignored.is_empty());
    assert!(takes(&strict(&json!({"x-guidance": {"whitespace_pattern": ".*"}})), "[1]"));
}

#[test]
fn many_optional_properties_do_not_end_an_answer() {
    let many: serde_json::Map<String, Value> =
        (0..500).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect();
    let grammar =
        strict(&json!({"type": "object", "properties": many, "additionalProperties": true}));
    assert!(takes(&grammar, "{\"p0\": \"a\", \"p499\": \"b\", \"other\": 1}"));
    assert!(!takes(&grammar, "{\"p499\": \"b\", \"p0\": \"a\"}"));
}

#[test]
fn what_llguidance_refuses_is_found_at_its_place() {
    let both = json!({"oneOf": [{"type": "integer"}, {"type": "number"}]});
    let nested = json!({"type": "object", "properties": {"ok": {"type": "null"}, "b": {"type":
        "array", "items": both}}});
    let message = refused(&nested);
    assert!(message.starts_with("#/properties/b/items/oneOf: the branches"), "{message}");
    let loose = of_kind(Kind::SchemaLoose, &nested.to_string());
    assert_eq!(loose.ignored, ["#/properties/b/items/oneOf"]);
    let referred = json!({"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}},
        "required": ["a"], "$defs": {"x": {"type": "object", "required": ["q"],
        "additionalProperties": false}}});
    let message = refused(&referred);
    assert!(message.starts_with("#/$defs/x: Unsatisfiable schema: "), "{message}");
    assert!(refused(&json!(false)).starts_with("#: Unsatisfiable"));
    let fewest = json!({"properties": {"a": {}}, "type": "object", "minProperties": 2});
    assert!(refused(&fewest).starts_with("#/minProperties: "));
}

#[test]
fn oversized_input_is_a_limit() {
    let small = Limits {
        max_text_bytes: 2_000,
        max_values: 50,
        max_enum_values: 5,
        max_refs: 2,
        max_depth: 3,
        ..LIMITS
    };
    let deep = json!({"items": {"items": {"items": {"items": {}}}}});
    let refs = json!({"properties": {"a": {"$ref": "#/$defs/0"}, "b": {"$ref": "#/$defs/1"},
        "c": {"$ref": "#/$defs/2"}}, "$defs": {"0": {}, "1": {}, "2": {}}});
    for (schema, part) in [
        (json!({"title": "a".repeat(2_000)}), "bytes, more than 2000"),
        (json!({"default": vec![0; 60]}), "more than 50 values"),
        (json!({"enum": [1, 2, 3, 4, 5, 6]}), "#/enum: more than 5 values"),
        (refs, "#/properties/c/$ref: more than 2 targets"),
        (deep, "#/items/items/items/items: nested deeper than 3"),
    ] {
        let vocabulary = bytes_vocabulary();
        let failure = compile(&vocabulary, Kind::SchemaLoose, &schema.to_string(), &small);
        let failure = failure.err().expect("a limit");
        assert_eq!(failure.code, Code::Limit, "{}", failure.message);
        assert!(failure.message.contains(part), "{}", failure.message);
    }
}

#[test]
fn schemas_that_explode_end_soon_and_hold_little() {
    let names: Vec<String> = (0..10_000).map(|i| format!("name {}", i * 7919 % 10_007)).collect();
    let wide: serde_json::Map<String, Value> =
        (0..2_000).map(|i| (format!("p{i}"), json!({"type": "string"}))).collect();
    let mut doubled = json!({"type": "integer"});
    for _ in 0..30 {
        doubled = json!({"anyOf": [doubled, {"type": "null"}], "allOf": [{"minimum": 0}]});
    }
    let crossed = json!({"allOf": (0..12).map(|i| json!({"anyOf": (0..8).map(|k| json!({
        "properties": {format!("p{i}{k}"): {"type": "integer"}}})).collect::<Vec<_>>()}))
        .collect::<Vec<_>>()});
    for schema in [
        json!({"enum": names}),
        json!({"properties": wide}),
        json!({"type": "array", "minItems": 1_000_000}),
        json!({"type": "string", "minLength": 1_000_000_000u64}),
        json!({"type": "string", "pattern": "^(a{1000}){1000}$"}),
        json!({"type": "string", "pattern": "((a|b)*c){20}d.*e(f|g){30,50}"}),
        json!({"type": "string", "pattern": "(.*a.{200}){5}"}),
        json!({"multipleOf": 997}),
        doubled,
        crossed,
    ] {
        let start = Instant::now();
        let limits =
            Limits { bounds: Bounds { memory_bytes: 512 << 20, ..LIMITS.bounds }, ..LIMITS };
        let text = schema.to_string();
        let made = compile(&bytes_vocabulary(), Kind::SchemaLoose, &text, &limits);
        let shown: String = text.chars().take(60).collect();
        let took = start.elapsed();
        match made {
            Ok(grammar) => {
                let mut state = State::new(&Arc::new(grammar));
                for _ in 0..50 {
                    if state.is_stopped() {
                        break;
                    }
                    let mut words = vec![0; NUM_TOKENS.div_ceil(32)];
                    let Ok(()) = state.mask(&mut words) else { break };
                    let Some(word) = words.iter().position(|word| *word != 0) else { break };
                    let id = word as u32 * 32 + words[word].trailing_zeros();
                    assert_eq!(state.accept(&[id]).unwrap(), 1);
                }
                println!("{took:?} taken, then {:?}: {shown}", start.elapsed() - took);
            }
            Err(failure) => println!("{took:?} {}: {shown}", failure.message),
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{shown}");
    }
    assert_eq!(crate::budget::num_stray_grammars(), 0, "no thread was left behind");
}

#[test]
fn steps_that_may_hold_together_are_bounded_together() {
    let joined = json!({"allOf": [{"multipleOf": 997}, {"multipleOf": 991}]});
    assert!(refused(&joined).starts_with("#/allOf/1/multipleOf: 991"));
    let loose = of_kind(Kind::SchemaLoose, &joined.to_string());
    assert_eq!(loose.ignored, ["#/allOf/1/multipleOf"]);
    let by_name = json!({"anyOf": [{"properties": {"a": {"multipleOf": 997}}}],
                         "properties": {"a": {"multipleOf": 991}}});
    assert!(refused(&by_name).contains("/a/multipleOf"));
    strict(&json!({"properties": {"a": {"multipleOf": 997}, "b": {"multipleOf": 991}}}));
    let both = strict(&json!({"type": "integer", "allOf": [{"multipleOf": 0.25},
                                                           {"multipleOf": 10}]}));
    assert!(takes(&both, "20") && !takes(&both, "5"));
    // derivre would compute with more than 32 bits.
    for step in [3_000_000_000f64, 0.000_000_003, 1e30] {
        assert!(refused(&json!({"type": "number", "multipleOf": step})).contains("#/multipleOf"));
    }
}

#[test]
fn a_schema_within_a_lark_grammar_has_the_limits_of_any_schema() {
    let pair = "start: %json {\"const\": \"a\"} \",\" %json {\"const\": \"b\"}\n";
    let pair = of_kind(Kind::Lark, pair);
    assert!(takes(&pair, "\"a\",\"b\"") && !takes(&pair, "\"a\""));
    for (bad, part) in [
        ("start: %json {\"multipleOf\": 1000003}", "line 1: the schema: #/multipleOf: "),
        ("start: a\na: %json\n {\"type\": \"x\"}", "line 2: the schema: #/type: "),
        ("start: /a\n\"/ %json {\"type\": \"x\"}", "line 2: the schema: #/type: "),
        ("start: %lark { start: %json {\"$ref\": \"#\"} }", "$ref leads to itself"),
        ("start: %json {\"type\": ", "line 1: the schema: "),
        ("start: %json", "line 1: the schema: "),
    ] {
        let message = refusal(Kind::Lark, bad).message;
        assert!(message.starts_with("the grammar: line") && message.contains(part), "{message}");
    }
    assert_eq!(crate::budget::num_stray_grammars(), 0, "no thread was left behind");
}

#[test]
fn an_answer_may_be_a_regular_expression_or_a_choice() {
    let number = of_kind(Kind::Regex, "[0-9]{3}-[a-f]+");
    assert!(takes(&number, "123-abc") && !takes(&number, "12-abc") && !takes(&number, "123-abcg"));
    let slash = of_kind(Kind::Regex, "a/b\\/c|\"");
    assert!(takes(&slash, "a/b/c") && takes(&slash, "\""));
    // Classes are ASCII, as they are in a schema's pattern; a backslash before one is a text.
    for (class, good, bad) in [
        ("\\d{2}", "42", "4٢"),
        ("[\\d]", "7", "२"),
        ("[^\\D]", "7", "२"),
        ("\\w+", "a_9", "é"),
        ("a\\sb", "a b", "a\u{a0}b"),
        ("\\\\d", "\\d", "7"),
    ] {
        let ascii = of_kind(Kind::Regex, class);
        assert!(takes(&ascii, good) && !takes(&ascii, bad), "{class}");
    }
    for bad in ["(", "", "a(?=b)", "[z-a]", "\\1"] {
        assert_eq!(refusal(Kind::Regex, bad).code, Code::InvalidArgument, "{bad}");
    }
    let choice = of_kind(Kind::Choice, r#"["a", "ab", "é \"x\"\n", "</|>"]"#);
    for text in ["a", "ab", "é \"x\"\n", "</|>"] {
        assert!(takes(&choice, text), "{text}");
    }
    assert!(!takes(&choice, "b") && !takes(&choice, "aba"));
    let mut state = State::new(&choice);
    state.accept(&ids("a")).unwrap();
    assert!(!state.is_stopped());
    assert!(mask_of(&mut state).contains(&END) && mask_of(&mut state).contains(&(b'b' as u32)));
    for bad in ["[]", "{}", "[1]", "[\"\"]", "a", "[\"a\""] {
        assert!(refusal(Kind::Choice, bad).message.starts_with("the choice"), "{bad}");
    }
}

#[test]
fn a_lark_grammar_never_reaches_control_tokens() {
    let sum = of_kind(Kind::Lark, "start: NUM (\"+\" NUM)*\nNUM: /[0-9]+/ # <a>\n");
    assert!(takes(&sum, "1+22+3") && !takes(&sum, "1+"));
    for (bad, part) in [
        ("", "empty"),
        ("start: a", "a"),
        ("start: \"a\"\nother: <[257]>", "line 2"),
        ("start: <|im_start|>", "line 1"),
        ("start: \"\\\"\" <[*]>", "line 1"),
        ("start: \"a\"\nb ::= \"c\"", "line 2: '::=' begins"),
        ("%llguidance {\"allow_invalid_utf8\": true}\nstart: \"a\"", "%llguidance"),
        ("start: \"a", "lexer error"),
    ] {
        let message = refusal(Kind::Lark, bad).message;
        assert!(message.starts_with("the grammar") && message.contains(part), "{message}");
    }
    for text in ["start: \"<|x|>\"", "start: /<x>/", "start: %json {\"const\": \"<a>\"}"] {
        of_kind(Kind::Lark, text);
    }
}

#[test]
fn a_trigger_in_free_text_begins_a_tag() {
    let tag = json!({"type": "structural_tag", "triggers": ["<f=", "[x"], "structures": [
        {"begin": "<f=a>", "schema": {"type": "integer"}, "end": "</f>"},
        {"begin": "<f=b>", "schema": {"type": "object", "properties": {"k": {"not": {"const": 1}}},
            "required": ["k"]}, "end": "</f>"},
        {"begin": "[x", "schema": true, "end": "]"}]});
    let grammar = of_kind(Kind::StructuralTag, &tag.to_string());
    assert_eq!(grammar.ignored, ["#/structures/1/schema/properties/k/not"]);
    for text in [
        "",
        "no tag, <f and </f>\nat all",
        "<f=a>12</f>",
        "first <f=a>12</f> then\n<f=b>{\"k\": \"v\"}</f> and [xnull] so on",
    ] {
        assert!(takes(&grammar, text), "{text}");
    }
    for text in ["<f=", "<f=c>", "<f=a>x</f>", "<f=a>12", "t <f=b>{}</f>", "[x]"] {
        assert!(!takes(&grammar, text), "{text}");
    }
    let one = |begin: &str, end: &str, schema: Value| {
        let structure = json!({"begin": begin, "schema": schema, "end": end});
        json!({"triggers": ["<f="], "structures": [structure]})
    };
    let impossible = json!({"type": "object", "required": ["a"],
        "properties": {"a": {"type": "integer", "minimum": 5, "maximum": 4}}});
    for (bad, part) in [
        (json!({"structures": [], "triggers": ["a"]}), "#/structures: "),
        (json!({"structures": [1], "triggers": []}), "#/triggers: "),
        (json!({"structures": [1], "triggers": ["a"]}), "#/structures/0: "),
        (one("<g>", "</g>", json!({})), "#/structures/0/begin: begins with none"),
        (one("<f=a>", "", json!({})), "#/structures/0/end: "),
        (one("<f=a>", "<", json!({"type": "int"})), "#/structures/0/schema/type: "),
        (one("<f=a>", "<", json!(false)), "#/structures/0/schema: "),
        (one("<f=a>", "<", impossible), "#/structures/0/schema/properties/a: Unsatisfiable"),
    ] {
        let message = refusal(Kind::StructuralTag, &bad.to_string()).message;
        assert!(message.contains(part), "{bad}: {message}");
    }
}

#[test]
fn forced_tags_are_the_whole_answer() {
    let tag = json!({"at_least_one": true, "max_tags": 2, "separator": "\n", "structures": [
        {"begin": "<c>{\"name\": \"a\", \"arguments\": ", "end": "}</c>", "schema": {
            "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"],
            "additionalProperties": false}},
        {"begin": "<c>{\"name\": \"ab\", \"arguments\": ", "end": "}</c>", "schema": {
            "$ref": "#/$defs/e", "$defs": {"e": {"type": "object",
            "additionalProperties": false, "contains": {}}}}}]});
    let grammar = of_kind(Kind::StructuralTag, &tag.to_string());
    assert_eq!(grammar.ignored, ["#/structures/1/schema/$defs/e/contains"]);
    let a = "<c>{\"name\": \"a\", \"arguments\": {\"n\": 1}}</c>";
    let b = "<c>{\"name\": \"ab\", \"arguments\": {}}</c>";
    for text in [a.to_string(), b.to_string(), format!("{a}\n{b}"), format!("{b}\n{b}")] {
        assert!(takes(&grammar, &text), "{text}");
    }
    for text in [
        String::new(),
        format!(" {a}"),
        format!("text {a}"),
        format!("{a}{b}"),
        format!("{a}\n{b}\n{a}"),
        format!("{a}\n"),
        "<c>{\"name\": \"a\", \"arguments\": {}}</c>".to_string(),
    ] {
        assert!(!takes(&grammar, &text), "{text}");
    }
    for (bad, part) in [
        (json!({"at_least_one": 1, "structures": []}), "#/at_least_one: "),
        (json!({"at_least_one": true, "max_tags": 0, "structures": []}), "#/max_tags: "),
        (json!({"at_least_one": true, "separator": "", "structures": []}), "#/separator: "),
        (json!({"at_least_one": true, "structures": []}), "#/structures: "),
    ] {
        let message = refusal(Kind::StructuralTag, &bad.to_string()).message;
        assert!(message.contains(part), "{bad}: {message}");
    }
}

#[test]
fn the_mask_is_exactly_what_is_taken() {
    let schema = json!({"type": "object", "properties": {"a": {"type": "boolean"},
        "s": {"type": "string", "maxLength": 4}}, "required": ["a"]});
    let mut state = State::new(&strict(&schema));
    let text = "{\"a\": true, \"s\":\"é\\n\"}";
    for byte in ids(text) {
        let allowed = mask_of(&mut state);
        for id in 0..NUM_TOKENS as u32 + 8 {
            let taken = state.clone().accept(&[id]).unwrap() == 1;
            assert_eq!(allowed.contains(&id), taken, "token {id} before byte {byte}");
        }
        assert!(!allowed.contains(&CONTROL));
        assert_eq!(state.accept(&[byte]).unwrap(), 1);
    }
    assert!(state.is_stopped());
    assert_eq!(mask_of(&mut state), [END]);
    assert_eq!(state.accept(&[b'x' as u32]).unwrap(), 0);
}

#[test]
fn tokens_with_equal_bytes_are_both_allowed() {
    let mut state = State::new(&of_kind(Kind::Regex, "a+"));
    assert_eq!(mask_of(&mut state), [b'a' as u32, 263]);
}

#[test]
fn a_state_is_a_function_of_its_tokens() {
    let grammar = of_kind(Kind::JsonObject, "");
    let tokens = ids("{\"a\": [1, {\"b\": \"xyz\"}, null], \"c\": -1.5e3}");
    let mut stepped = State::new(&grammar);
    for i in 0..tokens.len() {
        let mut replayed = State::new(&of_kind(Kind::JsonObject, ""));
        assert_eq!(replayed.accept(&tokens[..i]).unwrap(), i);
        let mut copy = stepped.clone();
        assert_eq!(mask_of(&mut stepped), mask_of(&mut replayed), "after {i} tokens");
        assert_eq!(mask_of(&mut copy), mask_of(&mut replayed), "a copy after {i} tokens");
        stepped.accept(&tokens[i..=i]).unwrap();
    }
    assert!(stepped.is_stopped());
}

#[test]
fn refused_tokens_change_nothing() {
    let mut state = State::new(&of_kind(Kind::Regex, "abc"));
    assert_eq!(state.accept(&ids("abx")).unwrap(), 2);
    assert_eq!(state.accept(&[END]).unwrap(), 0, "not whole yet");
    assert_eq!(state.accept(&[CONTROL]).unwrap(), 0);
    assert_eq!(state.accept(&[u32::MAX]).unwrap(), 0);
    assert_eq!(state.accept(&[]).unwrap(), 0);
    assert_eq!(mask_of(&mut state), [b'c' as u32]);
    assert_eq!(state.accept(&ids("c")).unwrap(), 1);
    assert!(state.is_stopped());
}

#[test]
fn the_end_stops_a_whole_text() {
    let mut state = State::new(&of_kind(Kind::Regex, "a+"));
    assert_eq!(state.accept(&[97, END, 97]).unwrap(), 2);
    assert!(state.is_stopped());
    assert_eq!(mask_of(&mut state), [END]);
}

#[test]
fn a_grammar_that_no_token_can_spell_is_an_error() {
    let vocabulary = Arc::new(Vocabulary::new(&[b"a", b"b", b""], &[2]).unwrap());
    let grammar = Arc::new(compile(&vocabulary, Kind::Regex, "ac", &LIMITS).ok().unwrap());
    let mut state = State::new(&grammar);
    let mut words = [7u32];
    state.mask(&mut words).unwrap();
    assert_eq!(words, [1]);
    assert_eq!(state.accept(&[0]).unwrap(), 1);
    let failure = state.mask(&mut words).unwrap_err();
    assert_eq!(failure.code, Code::Limit);
    assert_eq!(
        failure.message,
        "grammar: no token of the vocabulary can continue the grammar here"
    );
    assert_eq!(words, [1], "unchanged on failure");
    assert_eq!(state.mask(&mut []).unwrap_err().code, Code::InvalidArgument);
    assert!(!state.is_stopped(), "an error is not an end");
    assert!(takes_nothing_else(&grammar), "the next state starts clean");
}

fn takes_nothing_else(grammar: &Arc<Grammar>) -> bool {
    let mut state = State::new(grammar);
    let mut words = [0u32];
    state.mask(&mut words).is_ok() && words == [1]
}

#[test]
fn a_vocabulary_needs_an_end_inside_of_it() {
    assert!(Vocabulary::new(&[b"a"], &[]).is_err());
    assert!(Vocabulary::new(&[b"a"], &[1]).is_err());
    assert!(Vocabulary::new(&[], &[0]).is_err());
}

#[test]
fn streams_of_one_grammar_run_on_several_threads() {
    let grammar = of_kind(Kind::JsonObject, "");
    std::thread::scope(|scope| {
        for i in 0..4 {
            let grammar = &grammar;
            scope.spawn(move || {
                for round in 0..20 {
                    let text = format!("{{\"k{i}\": [{round}, \"{}\"]}}", "v".repeat(round));
                    let mut state = State::new(grammar);
                    for id in ids(&text) {
                        assert!(mask_of(&mut state).contains(&id));
                        assert_eq!(state.accept(&[id]).unwrap(), 1);
                    }
                    assert!(state.is_stopped());
                }
            });
        }
    });
}

#[test]
fn a_step_past_its_work_is_an_error_and_spoils_no_other_state() {
    // Each of 60 alternatives remembers 300 characters: the lexer's states never repeat.
    let heavy: Vec<String> = (0..60).map(|i| format!("(.|\\n)*[{}a].{{300}}b", i)).collect();
    let grammar = match compiled(Kind::Regex, &heavy.join("|")) {
        Ok(grammar) => grammar,
        Err(failure) => {
            assert_eq!(failure.code, Code::Limit, "{}", failure.message);
            return;
        }
    };
    let mut state = State::new(&grammar);
    let start = Instant::now();
    let mut words = vec![0; NUM_TOKENS.div_ceil(32)];
    for i in 0..2_000u32 {
        if let Err(failure) = state.mask(&mut words).and_then(|()| state.accept(&[97 + i % 3])) {
            println!("after {i} tokens, {:?}: {}", start.elapsed(), failure.message);
            assert_eq!(failure.code, Code::Limit, "{}", failure.message);
            break;
        }
    }
    assert!(start.elapsed() < Duration::from_secs(30));
    State::new(&grammar).mask(&mut words).unwrap();
}

#[test]
fn a_limit_of_one_state_is_not_the_next_ones() {
    let mut vocabulary = bytes_vocabulary();
    let limits = Arc::get_mut(&mut vocabulary).unwrap().factory.limits_mut();
    limits.max_lexer_states = 100;
    let text = "([a-z]{3}[0-9]){100}";
    let grammar = Arc::new(
        compile(&vocabulary, Kind::Regex, text, &LIMITS)
            .unwrap_or_else(|f| panic!("{}", f.message)),
    );
    let tokens = ids(&"abc7".repeat(100));
    let mut ends = Vec::new();
    for _ in 0..3 {
        let mut state = State::new(&grammar);
        let mut words = vec![0; NUM_TOKENS.div_ceil(32)];
        let failed = tokens.iter().position(|id| {
            let step = state.mask(&mut words).and_then(|()| state.accept(&[*id]));
            step.is_err_and(|failure| {
                assert_eq!(failure.code, Code::Limit, "{}", failure.message);
                true
            })
        });
        ends.push(failed.expect("the lexer has more than 100 states"));
        assert!(!state.is_stopped(), "an error is not an end");
        assert_eq!(state.mask(&mut words).unwrap_err().code, Code::Limit, "and it stays");
    }
    assert!(ends[0] > 10, "{ends:?}");
    assert_eq!(ends, [ends[0]; 3], "each state gets as far as the first");
}

#[path = "measure_tests.rs"]
pub mod measurements;
