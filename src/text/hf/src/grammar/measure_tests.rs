//! Measurements: not part of an ordinary run.

use super::*;

/// The JSON Schema Test Suite: no invalid instance is taken by a strict schema. Prints what is
/// narrower than the standard. BATON_JSON_SCHEMA_SUITE names the suite's folder of one draft.
#[test]
#[ignore = "needs the suite"]
fn json_schema_test_suite() {
    let folder = std::env::var("BATON_JSON_SCHEMA_SUITE").unwrap();
    let (mut taken, mut refused, mut narrower, mut wider) = (0, 0, 0, 0);
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).collect();
    files.sort();
    for path in files.iter().filter(|path| path.extension().is_some_and(|ext| ext == "json")) {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let groups: Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        for group in groups.as_array().unwrap() {
            let what = format!("{name}: {}", group["description"]);
            let grammar = match compiled(Kind::SchemaStrict, &group["schema"].to_string()) {
                Ok(grammar) => grammar,
                Err(failure) => {
                    println!("refused {what}: {}", failure.message);
                    refused += 1;
                    continue;
                }
            };
            taken += 1;
            for test in group["tests"].as_array().unwrap() {
                let valid = test["valid"] == true;
                if takes(&grammar, &test["data"].to_string()) == valid {
                    continue;
                }
                println!(
                    "{} {what}: {} {}",
                    if valid { "narrower" } else { "WIDER" },
                    test["description"],
                    test["data"].to_string().chars().take(80).collect::<String>()
                );
                *(if valid { &mut narrower } else { &mut wider }) += 1;
            }
        }
    }
    println!("schemas taken {taken}, refused {refused}; narrower {narrower}, wider {wider}");
}

/// The tokens and the end of a real vocabulary: BATON_GRAMMAR_VOCABULARY names a file of u32s: the
/// number of tokens, the end, then for each token its size and bytes.
pub fn real_tokens() -> (Vec<Vec<u8>>, u32) {
    let path = std::env::var("BATON_GRAMMAR_VOCABULARY").unwrap();
    let bytes = std::fs::read(path).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (count, end, mut at) = (word(0) as usize, word(4), 8);
    let mut tokens = Vec::new();
    for _ in 0..count {
        let size = word(at) as usize;
        tokens.push(bytes[at + 4..at + 4 + size].to_vec());
        at += 4 + size;
    }
    (tokens, end)
}

/// Times over a real vocabulary.
#[test]
#[ignore = "a measurement"]
fn mask_times() {
    let (tokens, end) = real_tokens();
    let tokens: Vec<&[u8]> = tokens.iter().map(Vec::as_slice).collect();
    let count = tokens.len();
    let start = Instant::now();
    let vocabulary = Arc::new(Vocabulary::new(&tokens, &[end]).unwrap());
    println!("vocabulary of {count}: {:?}", start.elapsed());
    let person = r#"{"type":"object","properties":{"name":{"type":"string"},"age":{"type":
        "integer","minimum":0,"maximum":150},"tags":{"type":"array","items":{"type":"string",
        "maxLength":20}},"mail":{"type":"string","format":"email"}},"required":["name","age",
        "tags","mail"],"additionalProperties":false}"#;
    let answer = r#"{"name": "Ada Lovelace of London", "age": 36, "tags": ["mathematics",
  "engines", "poetry"], "mail": "ada@example.org"}"#;
    let any = r#"{"a": [1, 2.5, {"deep": {"deeper": ["text with some words", null, true]}}],
  "b": "The quick brown fox jumps over the lazy dog, again and again."}"#;
    let deep = "start: e\ne: e e | \"(\" e \")\" | /[a-z]+/ | e \"+\" e\n";
    let wide: serde_json::Map<String, Value> = (0..500)
        .map(|i| (format!("p{i}"), json!({"type": "string", "maxLength": i % 50 + 1})))
        .collect();
    let wide = json!({"type": "object", "properties": wide}).to_string();
    for (name, kind, text) in [
        ("ambiguous", Kind::Lark, deep),
        ("500 properties", Kind::SchemaLoose, wide.as_str()),
        ("memory", Kind::Regex, "((a|b)*c.{100}){3}d"),
        ("words", Kind::Regex, "([a-z]{1,50} ){1,500}"),
        ("multiples", Kind::SchemaLoose, r#"{"multipleOf": 997, "minimum": 12345}"#),
    ] {
        let start = Instant::now();
        let grammar = match compile(&vocabulary, kind, text, &LIMITS) {
            Ok(grammar) => Arc::new(grammar),
            Err(failure) => {
                println!("{name}: {:?} {}", start.elapsed(), failure.message);
                continue;
            }
        };
        let compiled = start.elapsed();
        let (mut slowest, mut state) = (Duration::ZERO, State::new(&grammar));
        let mut words = vec![0u32; count.div_ceil(32)];
        let mut outcome = String::new();
        let mut seed = 1u64;
        for _ in 0..300 {
            let start = Instant::now();
            let masked = state.mask(&mut words);
            slowest = slowest.max(start.elapsed());
            if let Err(failure) = masked {
                outcome = failure.message;
                break;
            }
            if state.is_stopped() {
                break;
            }
            let ids: Vec<u32> = (0..count as u32)
                .filter(|i| *i != end && words[*i as usize / 32] >> (i % 32) & 1 == 1)
                .collect();
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let Some(id) = ids.get((seed >> 33) as usize % ids.len().max(1)) else { break };
            let start = Instant::now();
            let taken = state.accept(&[*id]);
            slowest = slowest.max(start.elapsed());
            if let Err(failure) = taken {
                outcome = failure.message;
                break;
            }
        }
        println!("{name}: compile {compiled:?}, slowest step {slowest:?} {outcome}");
    }
    for (name, kind, text, answer) in [
        ("person", Kind::SchemaStrict, person, answer),
        ("json_object", Kind::JsonObject, "", any),
        ("regex", Kind::Regex, "[A-Za-z ,.]{10,400}", "The quick brown fox jumps over a dog"),
    ] {
        let start = Instant::now();
        let grammar = Arc::new(
            compile(&vocabulary, kind, text, &LIMITS).unwrap_or_else(|f| panic!("{}", f.message)),
        );
        println!("{name}: compile {:?}", start.elapsed());
        for pass in ["cold", "warm", "warm"] {
            let (mut masks, mut accepts) = (Vec::new(), Vec::new());
            let start = Instant::now();
            let mut state = State::new(&grammar);
            let created = start.elapsed();
            let mut words = vec![0u32; count.div_ceil(32)];
            let mut rest = answer.as_bytes();
            while !rest.is_empty() {
                let start = Instant::now();
                state.mask(&mut words).unwrap();
                masks.push(start.elapsed());
                let fits = |id: &usize| {
                    let bytes = tokens[*id];
                    !bytes.is_empty() && rest.starts_with(bytes) && bytes.len() <= 12
                };
                let id = (0..count).filter(fits).max_by_key(|id| tokens[*id].len()).unwrap();
                let start = Instant::now();
                assert_eq!(state.accept(&[id as u32]).unwrap(), 1);
                accepts.push(start.elapsed());
                rest = &rest[tokens[id].len()..];
            }
            masks.sort();
            accepts.sort();
            println!(
                "{name} {pass}: {} tokens, create {created:?}, mask p50 {:?} p99 {:?}, accept p50 \
                 {:?} max {:?}",
                masks.len(),
                masks[masks.len() / 2],
                masks[masks.len() * 99 / 100],
                accepts[accepts.len() / 2],
                accepts[accepts.len() - 1],
            );
        }
    }
}
