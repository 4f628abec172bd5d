use super::*;
use crate::abi::OK;
use crate::Code;

const LIMITS: CLimits = CLimits {
    max_text_bytes: 1 << 16,
    max_values: 1000,
    max_enum_values: 100,
    max_refs: 10,
    max_depth: 20,
    max_memory_bytes: 256 << 20,
    timeout_ms: 10_000,
};

fn slice(text: &[u8]) -> Slice {
    Slice { data: text.as_ptr(), size: text.len() }
}

fn empty<T>() -> Owned<T> {
    Owned { data: std::ptr::null_mut(), size: 0, capacity: 0 }
}

/// Takes the bytes and frees their buffer.
fn taken(buffer: &mut Owned<u8>) -> String {
    if buffer.data.is_null() {
        return String::new();
    }
    let text = unsafe { std::slice::from_raw_parts(buffer.data, buffer.size) }.to_vec();
    unsafe { crate::abi::baton_text_buffer_free(buffer) };
    String::from_utf8(text).unwrap()
}

/// Tokens 0 = "a", 1 = "b", 2 = "ab", 3 = the end.
fn vocabulary() -> *mut Arc<Vocabulary> {
    let (ends, end_ids) = ([1u32, 2, 4, 4], [3u32]);
    let spec = CVocabularySpec {
        token_bytes: slice(b"abab"),
        token_ends: ends.as_ptr(),
        num_tokens: ends.len(),
        end_ids: end_ids.as_ptr(),
        num_end_ids: 1,
    };
    let (mut out, mut error) = (std::ptr::null_mut(), empty());
    let code = unsafe { baton_grammar_vocabulary_create(&spec, &mut out, &mut error) };
    assert_eq!(code, OK, "{}", taken(&mut error));
    out
}

#[test]
fn an_answer_goes_through_the_abi() {
    let vocabulary = vocabulary();
    let (mut grammar, mut error) = (std::ptr::null_mut(), empty());
    let (mut state, mut other) = (std::ptr::null_mut(), std::ptr::null_mut());
    unsafe {
        let code =
            baton_grammar_compile(vocabulary, 3, slice(b"ab+"), &LIMITS, &mut grammar, &mut error);
        assert_eq!(code, OK, "{}", taken(&mut error));
        baton_grammar_vocabulary_free(vocabulary);
        assert_eq!(baton_grammar_state_create(grammar, &mut state, &mut error), OK);
        assert_eq!(baton_grammar_state_create(grammar, &mut other, &mut error), OK);
        baton_grammar_free(grammar);
        let mut words = [9u32; 2];
        assert_eq!(baton_grammar_state_mask(state, words.as_mut_ptr(), 2, &mut error), OK);
        assert_eq!(words, [0b101, 0]);
        let (ids, mut count) = ([2u32, 1, 0], 9);
        assert_eq!(baton_grammar_state_accept(other, ids.as_ptr(), 3, &mut count, &mut error), OK);
        assert_eq!(count, 2);
        assert_eq!(baton_grammar_state_mask(other, words.as_mut_ptr(), 2, &mut error), OK);
        assert_eq!(words, [0b1010, 0], "more of b, or the end");
        assert_eq!(baton_grammar_state_mask(state, words.as_mut_ptr(), 2, &mut error), OK);
        assert_eq!(words, [0b101, 0], "the other alone has moved on");
        let end = [3u32];
        assert_eq!(baton_grammar_state_accept(other, end.as_ptr(), 1, &mut count, &mut error), OK);
        assert_eq!(count, 1);
        assert_eq!(baton_grammar_state_mask(other, words.as_mut_ptr(), 2, &mut error), OK);
        assert_eq!(words, [0b1000, 0], "the end alone");
        baton_grammar_state_free(state);
        baton_grammar_state_free(other);
        baton_grammar_state_free(std::ptr::null_mut());
        baton_grammar_free(std::ptr::null_mut());
        baton_grammar_vocabulary_free(std::ptr::null_mut());
    }
}

#[test]
fn bad_pointers_and_numbers_are_errors() {
    let vocabulary = vocabulary();
    let (mut grammar, mut error) = (std::ptr::null_mut(), empty());
    let invalid = Code::InvalidArgument as i32;
    unsafe {
        let mut compile = |vocabulary, kind, source, limits: *const CLimits| {
            let out = &mut grammar;
            let code = baton_grammar_compile(vocabulary, kind, source, limits, out, &mut error);
            assert_eq!(code, invalid);
            taken(&mut error)
        };
        let null = std::ptr::null();
        assert!(compile(null, 3, slice(b"a"), &LIMITS).contains("vocabulary is null"));
        assert!(compile(vocabulary, 3, slice(b"a"), null.cast()).contains("limits is null"));
        assert!(compile(vocabulary, 7, slice(b"a"), &LIMITS).contains("kind 7"));
        assert!(compile(vocabulary, 3, slice(b"\xff"), &LIMITS).contains("UTF-8"));
        let nothing = Slice { data: null.cast(), size: 3 };
        assert!(compile(vocabulary, 3, nothing, &LIMITS).contains("null"));
        assert!(grammar.is_null());

        let mut words = [0u32];
        let state = std::ptr::null_mut();
        assert_eq!(baton_grammar_state_mask(state, words.as_mut_ptr(), 1, &mut error), invalid);
        assert!(taken(&mut error).contains("state is null"));
        assert_eq!(baton_grammar_state_mask(state, null.cast_mut().cast(), 1, &mut error), invalid);
        assert!(taken(&mut error).contains("words"));
        let mut out: *mut State = std::ptr::null_mut();
        assert_eq!(baton_grammar_state_create(null.cast(), &mut out, &mut error), invalid);
        assert!(taken(&mut error).contains("grammar is null"));
        baton_grammar_vocabulary_free(vocabulary);
    }
}

#[test]
fn a_vocabulary_of_broken_spans_is_refused() {
    let end_ids = [0u32];
    for ends in [[1u32, 9], [2, 1]] {
        let spec = CVocabularySpec {
            token_bytes: slice(b"ab"),
            token_ends: ends.as_ptr(),
            num_tokens: 2,
            end_ids: end_ids.as_ptr(),
            num_end_ids: 1,
        };
        let (mut out, mut error) = (std::ptr::null_mut(), empty());
        let code = unsafe { baton_grammar_vocabulary_create(&spec, &mut out, &mut error) };
        assert_eq!(code, Code::InvalidArgument as i32);
        assert!(out.is_null());
        assert!(taken(&mut error).contains("token 1 spans bytes"));
    }
}

#[test]
fn the_ignored_keywords_are_lines() {
    let vocabulary = vocabulary();
    let (mut grammar, mut ignored, mut error) = (std::ptr::null_mut(), empty(), empty());
    let schema = slice(br#"{"not":{"type":"null"},"items":{"if":{}}}"#);
    unsafe {
        let code = baton_grammar_compile(vocabulary, 2, schema, &LIMITS, &mut grammar, &mut error);
        assert_eq!(code, OK, "{}", taken(&mut error));
        assert_eq!(baton_grammar_ignored(grammar, &mut ignored, &mut error), OK);
        assert_eq!(taken(&mut ignored), "#/not\n#/items/if");
        baton_grammar_free(grammar);
        baton_grammar_vocabulary_free(vocabulary);
    }
}
