use super::*;

fn slice(text: &[u8]) -> Slice {
    Slice { data: text.as_ptr(), size: text.len() }
}

fn empty<T>() -> Owned<T> {
    Owned { data: std::ptr::null_mut(), size: 0, capacity: 0 }
}

/// Takes the message and frees its buffer.
fn message(buffer: &mut Owned<u8>) -> String {
    let text = unsafe { std::slice::from_raw_parts(buffer.data, buffer.size) };
    let text = String::from_utf8(text.to_vec()).unwrap();
    unsafe { baton_text_buffer_free(buffer) };
    assert!(buffer.data.is_null());
    text
}

fn spec(text: &[u8], ends: &[u32], ids: &[u32], patterns: &[Slice]) -> CBpeSpec {
    CBpeSpec {
        token_text: slice(text),
        token_ends: ends.as_ptr(),
        token_ids: ids.as_ptr(),
        num_tokens: ids.len(),
        merges: std::ptr::null(),
        num_merges: 0,
        patterns: patterns.as_ptr(),
        num_patterns: patterns.len(),
        ignore_merges: 0,
    }
}

#[test]
fn encode_through_the_abi() {
    let merges = [10u32, 11];
    let mut spec = spec(b"abab", &[1, 2, 4], &[10, 11, 12], &[]);
    (spec.merges, spec.num_merges) = (merges.as_ptr(), 1);
    let mut bpe = std::ptr::null_mut();
    let mut error = empty();
    unsafe {
        assert_eq!(baton_text_bpe_create(&spec, &mut bpe, &mut error), OK);
        let mut ids = empty();
        assert_eq!(baton_text_bpe_encode(bpe, slice(b"abba?"), &mut ids, &mut error), OK);
        let got = std::slice::from_raw_parts(ids.data, ids.size).to_vec();
        assert_eq!(got, [12, 11, 10], "a byte without a letter yields nothing");
        baton_text_ids_free(&mut ids);
        baton_text_ids_free(&mut ids);
        assert_eq!(baton_text_bpe_encode(bpe, slice(b"\xff"), &mut ids, &mut error), 1);
        assert!(message(&mut error).contains("byte 0"));
        baton_text_bpe_free(bpe);
        baton_text_bpe_free(std::ptr::null_mut());
    }
}

#[test]
fn characters_through_the_abi() {
    let (mut out, mut error) = (empty(), empty());
    unsafe {
        assert_eq!(baton_text_compose(slice("e\u{301}".as_bytes()), &mut out, &mut error), OK);
        assert_eq!(message(&mut out), "\u{e9}");
        assert_eq!(baton_text_compose(slice(b"\xff"), &mut out, &mut error), 1);
        assert!(message(&mut error).contains("byte 0"));
        assert_eq!(baton_text_compose(slice(b"a"), std::ptr::null_mut(), &mut error), 1);
        assert!(message(&mut error).contains("out is null"));
    }
    for word in ['a', '_', '7', '\u{e9}', '\u{4e2d}', '\u{301}', '\u{200d}'] {
        assert_eq!(baton_text_is_word(word as u32), 1, "{word:?}");
    }
    for other in [' ', '>', '\u{2581}', '\u{a0}', '\u{b2}', '\u{1f600}'] {
        assert_eq!(baton_text_is_word(other as u32), 0, "{other:?}");
    }
    assert_eq!(baton_text_is_word(0xd800), 0);
}

#[test]
fn bad_pointers_and_spans_are_errors() {
    let mut bpe = std::ptr::null_mut();
    let mut error = empty();
    let mut create = |spec: *const CBpeSpec| -> String {
        let code = unsafe { baton_text_bpe_create(spec, &mut bpe, &mut error) };
        assert_eq!(code, Code::InvalidArgument as i32);
        assert!(bpe.is_null());
        message(&mut error)
    };
    assert!(create(std::ptr::null()).contains("spec is null"));
    assert!(create(&spec(b"ab", &[1, 5], &[0, 1], &[])).contains("1..5"));
    assert!(create(&spec(b"ab", &[2, 1], &[0, 1], &[])).contains("2..1"));
    assert!(create(&spec("é".as_bytes(), &[1, 2], &[0, 1], &[])).contains("0..1"));
    let null_pattern = [Slice { data: std::ptr::null(), size: 3 }];
    assert!(create(&spec(b"a", &[1], &[0], &null_pattern)).contains("pattern"));
    let mut counts = spec(b"a", &[1], &[0], &[]);
    counts.num_merges = usize::MAX;
    assert!(create(&counts).contains("merges"));
    counts.num_merges = 1;
    assert!(create(&counts).contains("merges: null"));
    let out: *mut *mut Bpe = std::ptr::null_mut();
    let code = unsafe { baton_text_bpe_create(&counts, out, std::ptr::null_mut()) };
    assert_eq!(code, Code::InvalidArgument as i32, "a null error buffer is allowed");
}

#[test]
fn a_panic_is_a_code() {
    let mut error = empty();
    let code = unsafe {
        answer(&mut error, || -> Result<(), Failure> { panic!("inside") }, |_| unreachable!())
    };
    assert_eq!(code, Code::Internal as i32);
    assert!(message(&mut error).contains("inside"));
}

#[test]
fn templates_through_the_abi() {
    let _lock = crate::budget::stray_test_lock();
    let mut template = std::ptr::null_mut();
    let (mut out, mut error) = (empty(), empty());
    let request = |json: &'static [u8]| CRenderRequest {
        variables_json: slice(json),
        fuel: 1000,
        max_output_bytes: 1000,
        max_memory_bytes: 16 << 20,
        timeout_ms: 10_000,
        now_unix_s: 0,
        has_now: 0,
    };
    unsafe {
        let source = slice(b"{{ x }}");
        assert_eq!(baton_text_template_create(source, &mut template, &mut error), OK);
        let good = request(b"{\"x\":\"hello\"}");
        assert_eq!(baton_text_template_render(template, &good, &mut out, &mut error), OK);
        assert_eq!(message(&mut out), "hello");
        assert_eq!(baton_text_template_reads(template, slice(b"x")), 1);
        assert_eq!(baton_text_template_reads(template, slice(b"y")), 0);
        assert_eq!(baton_text_template_reads(template, slice(b"\xff")), 0);
        assert_eq!(baton_text_template_reads(std::ptr::null(), slice(b"x")), 0);
        let bad = request(b"nonsense");
        assert_eq!(baton_text_template_render(template, &bad, &mut out, &mut error), 1);
        assert!(!message(&mut error).is_empty());
        let null = std::ptr::null();
        assert_eq!(baton_text_template_render(null, &good, &mut out, &mut error), 1);
        assert!(message(&mut error).contains("chat_template is null"));
        baton_text_template_free(template);
        assert_eq!(baton_text_template_create(slice(b"{{"), &mut template, &mut error), 1);
        assert!(!message(&mut error).is_empty());
    }
}
