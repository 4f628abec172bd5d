//! A mask that parts of other answers' masks went into is the one of a parser that is asked anew
//! about every token.

use std::sync::Arc;

use llguidance::earley::{BiasComputer, ParserRecognizer};
use llguidance::toktrie::{SimpleVob, TokEnv, TokTrie};
use llguidance::{Matcher, TokenParser};
use serde_json::{json, Value};

use super::compile::compile;
use super::masks::LexerMasks;
use super::memory::Memory;
use super::tests::measurements::real_tokens;
use super::tests::{bytes_vocabulary, LIMITS};
use super::{Grammar, Kind, State, Vocabulary};

/// Asks about every token.
struct EveryToken(TokEnv);

impl BiasComputer for EveryToken {
    fn compute_bias(&self, parser: &mut ParserRecognizer<'_>, start: &[u8]) -> SimpleVob {
        let mut set = self.trie().alloc_token_set();
        self.trie().add_bias(parser, &mut set, start);
        set
    }

    fn trie(&self) -> &TokTrie {
        self.0.tok_trie()
    }
}

/// Tokens of the shapes that a model's vocabulary has: bytes, words with blanks and quotes around
/// them, runs of blanks, digits, marks, pieces of characters. Token 0 ends a generation.
fn mixed_vocabulary() -> Arc<Vocabulary> {
    let mut tokens: Vec<Vec<u8>> = vec![b"".to_vec()];
    tokens.extend((0..=255).map(|byte| vec![byte]));
    for mark in [
        "{\"", "\":", "\": ", "\": \"", "\",", "\", \"", "\",\"", "\"}", "\"]", "\"\"", "\"\n",
        "},", "}}", "]}", "],", "}\n", "]\n", "[\"", "[[", "[]", "{}", ", ", ",\n", ")(", "//",
        "\n  ", "\r\n", "  ", "    ", "\t\t", "\\\"", "\\n", "\\u00", "\\\\", "--", "...", "é",
        "ée", "😀", "12", "123", "2024", ".5", "e-", "0.", "-1", "00", "T12:", "@ex", "true",
        "null", "nul",
    ] {
        tokens.push(mark.as_bytes().to_vec());
    }
    // Parts of characters.
    for part in [&b"\xc3"[..], b"\xf0\x9f", b"\xf0\x9f\x98", b"a\xc3", b"\xa9\"", b"\x80\","] {
        tokens.push(part.to_vec());
    }
    let words = ["a", "b", "name", "age", "kind", "person", "tags", "x", "longer words", "item"];
    let around = ["|", " |", "\"|", "|\"", "\"|\"", "\"|\":", "|\",", ",|"];
    for (word, around) in words.iter().flat_map(|word| around.map(|around| (word, around))) {
        tokens.push(around.replace('|', word).into_bytes());
    }
    let tokens: Vec<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
    Arc::new(Vocabulary::new(&tokens, &[0]).unwrap())
}

/// Numbers that look random, the same in each run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % end
    }
}

fn parser_with(grammar: &Grammar, masks: Arc<dyn BiasComputer>) -> TokenParser {
    let mut parser = grammar.parser();
    parser.bias_computer = masks;
    parser
}

/// The tokens of a mask that have text or end a generation; none where there is an error.
fn tokens_of(mask: Option<&[u32]>, usable: &[u32]) -> Vec<u32> {
    let Some(words) = mask else { return Vec::new() };
    let has = |id: &u32| {
        let (word, bit) = (*id as usize / 32, id % 32);
        words[word] & usable[word] & 1 << bit != 0
    };
    (0..usable.len() as u32 * 32).filter(has).collect()
}

/// Lets three answers of one grammar go random ways side by side, and compares each mask with the
/// one of a new parser. Returns how many were compared.
fn compare(vocabulary: &Arc<Vocabulary>, kind: Kind, text: &str, num_steps: usize) -> usize {
    let Ok(grammar) = compile(vocabulary, kind, text, &LIMITS) else { return 0 };
    let grammar = Arc::new(grammar);
    let trie = vocabulary.factory.tok_env();
    let every_token: Arc<dyn BiasComputer> = Arc::new(EveryToken(Arc::clone(trie)));
    let mut numbers = Numbers(text.len() as u64);
    let mut answers: Vec<_> = (0..3).map(|_| (State::new(&grammar), Vec::<u32>::new())).collect();
    let mut num_compared = 0;
    for _ in 0..num_steps {
        for (state, taken) in &mut answers {
            let mut words = vec![0; vocabulary.usable.len()];
            let mask = state.mask(&mut words).ok().map(|()| words);
            let mut anew = Matcher::new(Ok(parser_with(&grammar, Arc::clone(&every_token))));
            let expected =
                anew.consume_tokens(taken).and_then(|()| anew.compute_mask_or_eos()).ok();
            let ids = tokens_of(mask.as_deref(), &vocabulary.usable);
            let right = tokens_of(expected.as_ref().map(SimpleVob::as_slice), &vocabulary.usable);
            assert_eq!(ids, right, "{text}: after {taken:?}");
            num_compared += 1;
            // A quote, a comma or a bracket in every other token: else texts have no end.
            let marks: Vec<u32> = ids
                .iter()
                .copied()
                .filter(|id| trie.tok_trie().token(*id).iter().any(|b| b"\",]}:".contains(b)))
                .collect();
            let among = if numbers.below(2) == 0 && !marks.is_empty() { &marks } else { &ids };
            if among.is_empty() || state.is_stopped() {
                (*state, *taken) = (State::new(&grammar), Vec::new());
                continue;
            }
            let id = among[numbers.below(among.len())];
            assert_eq!(state.accept(&[id]).unwrap(), 1, "{text}: {id} after {taken:?}");
            taken.push(id);
        }
    }
    num_compared
}

fn schemas() -> Vec<Value> {
    let person = json!({"type": "object", "properties": {
        "name": {"type": "string", "minLength": 2, "maxLength": 9},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "kind": {"enum": ["person", "place", "thing"]},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3}},
        "required": ["name", "age", "kind", "tags"], "additionalProperties": false});
    vec![
        json!({"type": "array", "items": person, "minItems": 3}),
        json!({"anyOf": [person, {"type": "string", "maxLength": 3}, {"type": "null"}]}),
        json!({"type": "object"}),
        json!({"properties": {"a": {"type": "string"}, "b": {}, "x": {"const": "é"}}}),
        json!({"type": "object", "additionalProperties": {"type": "string", "maxLength": 2}}),
        json!({"type": "object", "patternProperties": {"^a": {"type": "number"}, "^b": {}}}),
        // Closing a string means something else at each depth.
        json!({"items": {"type": "array", "items": {"type": "string"}, "maxItems": 2}}),
        json!({"prefixItems": [{"type": "string"}, {"type": "integer"}], "items": false}),
        json!({"type": "string", "pattern": "^a[^\"]{2,40}b$"}),
        json!({"type": "string", "pattern": "(name|age)+"}),
        json!({"type": "string", "maxLength": 40}),
        json!({"type": "string", "minLength": 30}),
        json!({"type": "string", "format": "date-time"}),
        json!({"type": "string", "format": "email"}),
        json!({"enum": ["a", "ab", "a\"b", "é", 1, 12, null, [true], {"a": "b"}]}),
        json!({"type": ["integer", "string", "null"]}),
        json!({"type": "number", "minimum": -1, "maximum": 20.5}),
        json!({"type": "integer", "multipleOf": 3}),
        json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {
            "n": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "string"}]}}, "required": ["n"]}}}),
        json!(true),
    ]
}

#[test]
fn masks_are_those_of_a_parser_that_is_asked_about_every_token() {
    let vocabulary = mixed_vocabulary();
    let mut num_compared = 0;
    for schema in schemas() {
        for blanks in [true, false] {
            let mut schema = schema.clone();
            if let (Some(members), false) = (schema.as_object_mut(), blanks) {
                members.insert("x-guidance".into(), json!({"whitespace_flexible": false}));
            }
            num_compared += compare(&vocabulary, Kind::SchemaLoose, &schema.to_string(), 60);
        }
    }
    for (kind, text) in [
        (Kind::JsonObject, ""),
        (Kind::Regex, "[a-z ,.]{5,30}"),
        (Kind::Regex, "(a|ab|name)*[0-9]{1,3}"),
        (Kind::Regex, "(.|\\n){1,20}"),
        (Kind::Choice, r#"["a", "ab", "name", "namesake", " a\"", "longer words"]"#),
        (Kind::Lark, "start: e\ne: e \"+\" e | \"(\" e \")\" | /[a-z]+/ | /[0-9]+/\n"),
        (Kind::Lark, "start: /[^\"]*/ \"\\\"\" %json {\"type\": \"array\"} /[ab]*/"),
        (
            Kind::Lark,
            "root ::= \"{\" item (\", \" item)* \"}\"\nitem ::= [a-z]+ | \"'\" [^']* \"'\"",
        ),
    ] {
        num_compared += compare(&vocabulary, kind, text, 60);
    }
    assert!(num_compared > 7_000, "{num_compared}: a grammar no longer compiles");
    // Tokens with equal bytes, and a long one.
    assert!(compare(&bytes_vocabulary(), Kind::Regex, "a*[ab]{3}", 40) > 0);
}

/// BATON_JSON_SCHEMA_SUITE and BATON_GRAMMAR_VOCABULARY as in measure_tests.rs.
#[test]
#[ignore = "needs the suite and a vocabulary"]
fn masks_of_the_suites_schemas_over_a_real_vocabulary() {
    let (tokens, end) = real_tokens();
    let tokens: Vec<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
    let vocabulary = Arc::new(Vocabulary::new(&tokens, &[end]).unwrap());
    let folder = std::env::var("BATON_JSON_SCHEMA_SUITE").unwrap();
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    let (mut num_grammars, mut num_compared) = (0, 0);
    for path in files.iter().filter(|path| path.extension().is_some_and(|ext| ext == "json")) {
        let groups: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        for group in groups.as_array().unwrap() {
            let num = compare(&vocabulary, Kind::SchemaLoose, &group["schema"].to_string(), 25);
            num_grammars += usize::from(num > 0);
            num_compared += num;
        }
    }
    println!("{num_compared} masks of {num_grammars} grammars are equal");
    assert!(num_grammars > 100);
}

#[test]
fn what_is_kept_is_bounded_and_masks_go_on() {
    let vocabulary = mixed_vocabulary();
    let text = json!({"type": "string", "maxLength": 300}).to_string();
    let grammar = compile(&vocabulary, Kind::SchemaStrict, &text, &LIMITS).ok().unwrap();
    let masks_after = |max_bytes: usize| {
        let memory = Arc::new(Memory::new(usize::MAX));
        let masks = Arc::new(LexerMasks::new(Arc::clone(&vocabulary.tree), memory, max_bytes));
        let shared: Arc<dyn BiasComputer> = Arc::clone(&masks) as _;
        let mut matcher = Matcher::new(Ok(parser_with(&grammar, shared)));
        let mut found = Vec::new();
        for id in [b'"'].iter().chain([b'a'; 300].iter()).map(|byte| u32::from(*byte) + 1) {
            matcher.consume_token(id).unwrap();
            found.push(matcher.compute_mask().unwrap().as_slice().to_vec());
        }
        (masks.num_bytes(), found)
    };
    let (num_bytes, masks) = masks_after(usize::MAX);
    assert!(num_bytes > 60_000, "{num_bytes} bytes for 301 states");
    let (at_most, same) = masks_after(30_000);
    assert!(at_most <= 30_000 && at_most > 15_000, "{at_most}");
    assert!(masks == same && masks == masks_after(0).1);
}

/// The masks of an answer over `grammar` after each of 100 letters.
fn masks_of_a_text(grammar: &Arc<Grammar>, state: &mut State) -> Vec<Vec<u32>> {
    let letters = [b'"'].into_iter().chain([b'a'; 100]);
    let mask_after = |byte: u8| {
        assert_eq!(state.accept(&[u32::from(byte) + 1]).ok(), Some(1));
        let mut words = vec![0; grammar.usable().len()];
        assert!(state.mask(&mut words).is_ok());
        words
    };
    letters.map(mask_after).collect()
}

#[test]
fn all_lexers_have_one_budget_and_give_back_what_they_had() {
    let text = |length: u32| json!({"type": "string", "maxLength": length}).to_string();
    let compiled = |vocabulary: &Arc<Vocabulary>, length| {
        let made = compile(vocabulary, Kind::SchemaStrict, &text(length), &LIMITS);
        Arc::new(made.ok().unwrap())
    };
    let free = mixed_vocabulary();
    let mut small = mixed_vocabulary();
    Arc::get_mut(&mut small).unwrap().memory = Arc::new(Memory::new(30_000));
    let mut bytes_before = 0;
    let mut held = Vec::new();
    for length in [200, 300] {
        let (wide, tight) = (compiled(&free, length), compiled(&small, length));
        let mut state = State::new(&tight);
        let masks = masks_of_a_text(&tight, &mut state);
        assert!(masks == masks_of_a_text(&wide, &mut State::new(&wide)));
        held.push(state); // the grammar itself is gone: as one that a cache gave up
        assert!(small.memory.mask_bytes() <= 30_000);
        assert!(small.memory.lexer_bytes() > bytes_before, "states of {length}");
        bytes_before = small.memory.lexer_bytes();
    }
    assert!(small.memory.mask_bytes() > 15_000, "{}", small.memory.mask_bytes());
    assert_eq!((free.memory.mask_bytes(), free.memory.lexer_bytes()), (0, 0), "all are gone");
    let copy = held[0].clone();
    held.clear();
    assert!(small.memory.lexer_bytes() > 0, "the copy's lexer is the first one's");
    drop(copy);
    assert_eq!((small.memory.mask_bytes(), small.memory.lexer_bytes()), (0, 0));
}
