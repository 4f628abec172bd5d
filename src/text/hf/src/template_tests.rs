use super::*;
use std::time::Instant;

const LIMITS: RenderLimits = RenderLimits {
    fuel: 1_000_000,
    max_output_bytes: 1 << 20,
    bounds: Bounds { memory_bytes: 64 << 20, timeout: Duration::from_millis(20_000) },
    now_unix_s: None,
};

fn render(source: &str, variables: &str) -> Result<String, Failure> {
    ChatTemplate::new(source)?.render(variables, &LIMITS)
}

fn text_of(source: &str, variables: &str) -> String {
    render(source, variables).unwrap_or_else(|f| panic!("{source}: {}", f.message))
}

fn refused(source: &str) -> Failure {
    match render(source, "{}") {
        Ok(text) => panic!("{source} rendered {} bytes", text.len()),
        Err(failure) => failure,
    }
}

#[test]
fn blocks_are_trimmed_as_hugging_face_does() {
    let _lock = budget::stray_test_lock();
    let source = "  {% if true %}\n  a\n  {% endif %}\nb\n";
    assert_eq!(text_of(source, "{}"), "  a\nb");
    assert_eq!(text_of("{%- if true %}x{%- endif -%}\n y", "{}"), "xy");
}

#[test]
fn python_methods_and_tests_work() {
    let _lock = budget::stray_test_lock();
    for (source, expected) in [
        ("{{ ' a '.strip() + 'b'.upper() }}", "aB"),
        ("{{ 'a,b'.split(',')[-1] }}", "b"),
        ("{{ 'xay'.replace('a', '-') }}", "x-y"),
        ("{{ 'abc'.startswith('ab') and not 'abc'.endswith('x') }}", "True"),
        ("{{ {'k': 1}.get('k') }}{{ {'k': 1}.get('z') is none }}", "1True"),
        ("{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}", "a=1"),
        ("{{ 'abab'.count('ab') }} {{ 'abc'.count('') }}", "2 4"),
        ("{% for i in [1,2,3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        (
            "{% set ns = namespace(x=1) %}{% for i in [1] %}{% set ns.x = 5 %}{% endfor %}\
             {{ ns.x }}",
            "5",
        ),
        ("{{ [1,2,3][1:]|length }}{{ 'x' is string }}{{ {} is mapping }}", "2TrueTrue"),
        ("{{ strftime_now is defined }}", "False"),
        ("{{ nothing }}|", "|"),
        ("a{% generation %}b{%- endgeneration -%} c{% if false %}generation{% endif %}", "abc"),
    ] {
        assert_eq!(text_of(source, "{}"), expected, "{source}");
    }
}

#[test]
fn html_is_not_escaped() {
    let _lock = budget::stray_test_lock();
    let source = "{{ x }}{{ x|tojson }}";
    assert_eq!(text_of(source, r#"{"x":"<a&'>"}"#), "<a&'>\"<a&'>\"");
}

#[test]
fn the_clock_is_the_callers() {
    let _lock = budget::stray_test_lock();
    let limits = RenderLimits { now_unix_s: Some(1_753_488_000), ..LIMITS };
    let template = ChatTemplate::new("{{ strftime_now('%d %b %Y') }}").unwrap();
    assert_eq!(template.render("{}", &limits).unwrap(), "26 Jul 2025");
}

#[test]
fn raise_exception_is_the_templates_own_words() {
    let _lock = budget::stray_test_lock();
    let failure = refused(
        "{% macro m() %}{{ raise_exception('roles must alternate') }}{% endmacro %}{{ m() }}",
    );
    assert_eq!(failure.code, Code::Raised);
    assert_eq!(failure.message, "roles must alternate (line 1 of the template)");
}

#[test]
fn bad_templates_and_variables_say_where() {
    let _lock = budget::stray_test_lock();
    let failure = ChatTemplate::new("line\n{% if %}").unwrap_err();
    assert_eq!(failure.code, Code::InvalidArgument);
    assert!(failure.message.contains("line 2 of the template"), "{}", failure.message);
    assert!(ChatTemplate::new(&" ".repeat(MAX_SOURCE_BYTES + 1)).is_err());
    assert_eq!(render("", "[1]").unwrap_err().code, Code::InvalidArgument);
    assert_eq!(render("", "{").unwrap_err().code, Code::InvalidArgument);
    assert_eq!(render("{{ x.y.z }}", "{}").unwrap_err().code, Code::InvalidArgument);
    assert!(refused("{{ 'x'.nosuch() }}").message.contains("nosuch"));
    let endless = refused("{{ raise_exception('é' * 100000) }}");
    assert!(endless.message.len() < 2100);
}

#[test]
fn loops_and_recursion_hit_a_limit_soon() {
    let _lock = budget::stray_test_lock();
    for source in [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
        "{% macro m(x) %}{% for i in range(9) %}{{ m(x) }}{% endfor %}{% endmacro %}{{ m(1) }}",
        "{% for i in [[1]] recursive %}{{ loop([[1]]) }}{% endfor %}",
        "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}\
         {% endfor %}{{ n.x }}",
        "{% set n = namespace(x=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}\
         {% endfor %}{{ n.x | tojson }}",
        "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}\
         {% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x == n.y }}",
        "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}\
         {% set n.y = [n.y, n.y] %}{% endfor %}{{ n.x in [n.y] }}",
        "{% set n = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set n.x = [n.x, n.x] %}\
         {% set n.y = [n.y, n.y] %}{% endfor %}{{ [n.x, n.y] | sort }}",
        "{% set n = namespace(x=(1,)) %}{% for i in range(60) %}{% set n.x = (n.x, n.x) %}\
         {% endfor %}{{ [n.x] | unique | list }}",
        "{% set t = 'x' * 2000000 %}{{ t | wordwrap(1) }}",
    ] {
        let start = Instant::now();
        let failure = refused(source);
        assert_eq!(failure.code, Code::Limit, "{source}: {}", failure.message);
        assert!(start.elapsed() < Duration::from_secs(20), "{source}: {:?}", start.elapsed());
    }
}

#[test]
fn hungry_expressions_end_soon_and_lose_no_thread() {
    let _lock = budget::stray_test_lock();
    let strays = budget::num_strays();
    let loops = |body: &str| format!("{{% for i in range(99999) %}}{body}{{% endfor %}}");
    let grow = |first: &str, next: &str| {
        format!(
            "{{% set n = namespace(x={first}) %}}{{% for i in range(99999) %}}\
             {{% set n.x = {next} %}}{{% endfor %}}"
        )
    };
    let mut sources: Vec<String> = [
        "[]|slice(10**9)|list",
        "['a']|slice(10**12, 'x')|list",
        "['a']|batch(10**12, 'x')|list",
        "[] * 10**18",
        "['a'] * 10**9",
        "'' * 10**18",
        "'a' * 10**18",
        "'x'.center(10**12)",
        "'x'.ljust(10**18)",
        "'x'.rjust(10**12)",
        "'x'.zfill(10**12)",
        "'\t'.expandtabs(10**12)",
        "'%1000000000000d' % 1",
        "'%.1000000000f' % 1.0",
        "'%*d' % (10**12, 1)",
        "'{:1000000000000}'.format(1)",
        "'{:.1000000000f}'.format(1.0)",
        "10**10**10",
        "2**(2**40)",
        "(10**4000)**1000",
        "'x'|indent(10**12)",
        "('a\n' * 1000)|indent(10**9)",
        "'a'|center(10**12)",
        "'a'|truncate(10**12)",
        "1.5|round(10**9)",
        "12345|round(-10**9)",
        "range(10**12)|list",
        "('a' * 100000).replace('a', 'b' * 100000)",
        "('a' * 500000)|wordwrap(1)",
        "('a-' * 200000)|wordwrap(3)",
        "('ab ' * 200000).split()|length",
        "('a,' * 400000).split(',')|unique|list|length",
        "range(99999)|sort(reverse=true)|first",
        "range(99999)|map('string')|join|length",
        "'a'.join(['b' * 1000] * 99999)|length",
        "('a' * 900000)|list|length",
        "('<' * 900000)|escape|length",
        "('a' * 900000)|urlencode|length",
    ]
    .iter()
    .map(|expression| format!("{{{{ {expression} }}}}"))
    .collect();
    for body in [
        "{% set x = t.find('ab') %}",
        "{% set x = t.count('b') %}",
        "{% set x = t|length %}",
        "{% set x = t[::-1] %}",
        "{% set x = t|first %}",
        "{% set x = t|reverse %}",
        "{% set x = t[1:3] %}",
        "{% set x = t.strip('a') %}",
        "{% set x = t.isalpha() %}",
        "{% set x = t is lower %}",
        "{% set x = t == u %}",
        "{% set x = 'b' in t %}",
        "{% set x = l.index('b') if false else l|last %}",
        "{% set x = 'b' in l %}",
        "{% set x = l == m %}",
        "{% set x = l|max %}",
        "{% set x = {t: 1} %}",
        "{% set x = (l ~ '') %}",
        "{% set x = l|tojson %}",
        "{% set x = t|lower %}",
        "{% set x = t % () %}",
        "{% set x = t.format() %}",
        "{% set x = l[5:] %}",
        "{% set x = t|int %}",
        "{% set x = t|float(1) %}",
    ] {
        let t = "{% set t = 'a' * 500000 %}{% set u = 'a' * 500000 %}";
        let l = "{% set l = ['a'] * 50000 %}{% set m = ['a'] * 50000 %}";
        sources.push(format!("{t}{l}{}", loops(body)));
    }
    for (first, next) in [
        ("3", "n.x * n.x"),
        ("3", "n.x ** 7"),
        ("[1]", "n.x + n.x"),
        ("[1]|reverse", "[n.x, n.x]|reverse"),
        ("(1,)", "(n.x, n.x)"),
        ("''", "n.x ~ 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa'"),
        ("joiner(1)", "joiner(n.x)"),
        ("cycler(1)", "cycler(n.x, n.x)"),
        ("{}", "dict(a=n.x, b=n.x)"),
        ("1", "namespace(x=n.x)"),
    ] {
        sources.push(grow(first, next));
    }
    // As served: a rendering that is left after its time sees that soon.
    let bounds = Bounds { timeout: Duration::from_millis(500), ..LIMITS.bounds };
    let limits = RenderLimits { bounds, ..LIMITS };
    for source in sources {
        let outcome = ChatTemplate::new(&source).and_then(|t| t.render("{}", &limits));
        let said = outcome.map_or_else(|f| f.message, |text| format!("{} bytes", text.len()));
        let end = Instant::now() + Duration::from_secs(5);
        while budget::num_strays() != strays {
            assert!(Instant::now() < end, "{source}: {said}, and its thread goes on");
            std::thread::yield_now();
        }
    }
}

#[test]
fn lazy_filters_fail_at_the_item_that_fails() {
    let _lock = budget::stray_test_lock();
    for (source, expected) in [
        ("{{ ['a', none] | select('in', 'abc') | first }}", "a"),
        ("{{ ['a', 1] | map('upper') | select | first }}", "A"),
        ("{% for x in ['a', none] | select('in', 'abc') %}{{ x }}{% break %}{% endfor %}", "a"),
        ("{% set x = ['a', none] | select('in', 'abc') %}b", "b"),
    ] {
        assert_eq!(text_of(source, "{}"), expected, "{source}");
    }
    for source in [
        "{{ ['a', none] | select('in', 'abc') | list }}",
        "{{ [none, 'a'] | select('in', 'abc') | first }}",
        "{% for x in ['a', none] | select('in', 'abc') %}{{ x }}{% endfor %}",
    ] {
        assert_eq!(refused(source).code, Code::InvalidArgument, "{source}");
    }
}

#[test]
fn growth_hits_the_memory_limit_soon() {
    let _lock = budget::stray_test_lock();
    budget::reset_strays_for_test();
    for (first, next) in [
        ("'ab'", "n.x ~ n.x"),
        ("'ab'", "n.x.replace('a', n.x)"),
        ("'ab'", "n.x|replace('b', n.x)"),
        ("['ab']", "[n.x|join(','), n.x|join(',')]"),
    ] {
        let source = format!(
            "{{% set n = namespace(x={first}) %}}{{% for i in range(64) %}}\
             {{% set n.x = {next} %}}{{% endfor %}}"
        );
        let start = Instant::now();
        let failure = refused(&source);
        assert_eq!(failure.code, Code::Limit, "{source}: {}", failure.message);
        assert!(start.elapsed() < Duration::from_secs(20), "{source}: {:?}", start.elapsed());
        assert_eq!(budget::num_strays(), 0, "{source} lost its thread");
    }
}

#[test]
fn variables_without_room_lose_no_thread() {
    let _lock = budget::stray_test_lock();
    budget::reset_strays_for_test();
    let template = ChatTemplate::new("{{ x | length }}").unwrap();
    let limits =
        RenderLimits { bounds: Bounds { memory_bytes: 16 << 20, ..LIMITS.bounds }, ..LIMITS };
    for unit in ["[0]", "{\"a\":0}", "\"\"", "0", "[[],[]]"] {
        let variables = format!("{{\"x\":[{}0]}}", format!("{unit},").repeat(1_000_000));
        for _ in 0..2 * budget::MAX_STRAYS {
            let outcome = template.render(&variables, &limits);
            assert_eq!(outcome.unwrap_err().code, Code::Limit, "{unit}");
            assert_eq!(budget::num_strays(), 0, "{unit}");
        }
    }
    assert_eq!(text_of("{{ x }}", "{\"x\":\"ok\"}"), "ok");
}

#[test]
fn rounds_without_items_end_at_once() {
    let _lock = budget::stray_test_lock();
    assert_eq!(text_of("{{ [] * 1000000000000000000 }}{{ () * 9000000000 }}", "{}"), "[]()");
    let source = "{% set n = namespace(x=[1]|reverse) %}{% for i in range(200) %}\
                  {% set n.x = [n.x, n.x]|reverse %}{% endfor %}done";
    assert_eq!(text_of(source, "{}"), "done");
}

/// EncodeChat takes the character out again, so no printed form may spell it.
#[test]
fn printed_forms_keep_guards_as_they_are() {
    let _lock = budget::stray_test_lock();
    let variables = "{\"x\":\"\u{fdd0}<\"}";
    for source in [
        "{{ [x] }}",
        "{{ {x: x} }}",
        "{{ [x]|tojson(ensure_ascii=true) }}",
        "{{ '%r %a' % (x, x) }}",
        "{{ '{!r}{!a}'.format(x, x) }}",
    ] {
        let text = text_of(source, variables);
        assert!(text.contains('\u{fdd0}') && !text.contains("\\ufdd0"), "{source}: {text}");
    }
}

/// Values nest up to a limit; each recursive walk over them must fit the stack.
#[test]
fn the_deepest_values_fit_the_stack() {
    let _lock = budget::stray_test_lock();
    let limits = RenderLimits { fuel: MAX_FUEL, ..LIMITS };
    for last in ["", "{{ n.x }}", "{{ n.x|tojson }}", "{{ n.x == n.y }}", "{{ [n.x, n.y]|sort }}"] {
        for wrap in ["[n.x]", "{'k': n.x}", "(n.x,)"] {
            for (rounds, fits) in [(900, true), (5_000, false)] {
                let source = format!(
                    "{{% set n = namespace(x=[], y=[]) %}}{{% for i in range({rounds}) %}}\
                     {{% set n.x = {wrap} %}}{{% endfor %}}{last}"
                );
                // A crash of the process is the failure; only lists have an order beside a list.
                let outcome = ChatTemplate::new(&source).unwrap().render("{}", &limits);
                let code = outcome.err().map(|f| f.code);
                let has_no_order = !wrap.starts_with('[') && last.ends_with("sort }}");
                let expected =
                    if has_no_order && fits { Some(Code::InvalidArgument) } else { None };
                let expected = if fits { expected } else { Some(Code::Limit) };
                assert_eq!(code, expected, "{wrap} {last} {rounds}");
            }
        }
    }
    // A namespace may hold itself; it is freed with the rendering.
    let source = "{% set n = namespace() %}{% set n.n = n %}{{ n }}";
    assert_eq!(refused(source).code, Code::Limit);
}

#[test]
fn the_deepest_expressions_fit_the_stack() {
    let _lock = budget::stray_test_lock();
    for unit in ["1+", "x.", "not ", "[", "(", "-", "x|f|", "1~"] {
        let source = format!("{{{{ {}1 }}}}", unit.repeat((MAX_SOURCE_BYTES - 16) / unit.len()));
        let _ = render(&source, "{}");
    }
    let nested = "{% if 1 %}".repeat(MAX_SOURCE_BYTES / 12);
    assert!(render(&nested, "{}").is_err());
}

/// The bound on compiling refuses no source for its length.
#[test]
fn the_densest_sources_compile() {
    let _lock = budget::stray_test_lock();
    for unit in
        ["{{a}}", "{{a.b[c]}}", "{{a|e}}", "{{1+1}}", "{%if a%}b{%endif%}", "{%set a=1%}", "a"]
    {
        let source = unit.repeat(MAX_SOURCE_BYTES / unit.len());
        let outcome = ChatTemplate::new(&source);
        assert!(outcome.is_ok(), "{unit}: {}", outcome.unwrap_err().message);
    }
    let flat = format!("{{{{ [{}1] }}}}", "a,".repeat(MAX_SOURCE_BYTES / 2 - 8));
    let outcome = ChatTemplate::new(&flat);
    assert!(outcome.is_ok(), "a list: {}", outcome.unwrap_err().message);
}

/// Each expression asks for a large result, which is refused before it is made. So no thread is
/// lost.
#[test]
fn large_results_hit_the_memory_limit_without_a_stray() {
    let _lock = budget::stray_test_lock();
    budget::reset_strays_for_test();
    for _ in 0..2 * budget::MAX_STRAYS {
        for source in [
            "{{ 'x' * 70000000 }}",
            "{{ [0] * 70000000 }}",
            "{{ 'x'.center(70000000) }}",
            "{{ 'xx' | replace('x', 'y' * 30000000) | length }}",
            "{{ '%70000000d' % 1 }}",
            "{{ '{:70000000}'.format(1) }}",
            "{{ 2 ** 70000000 }}",
            "{{ 'ab' | indent(70000000) }}",
            "{{ [1] | batch(70000000, 0) | list }}",
            "{{ [1] | tojson(indent=70000000) }}",
        ] {
            let failure = refused(source);
            let is_bounded = failure.code == Code::Limit || failure.message.contains("above");
            assert!(is_bounded, "{source}: {}", failure.message);
        }
    }
    assert_eq!(text_of("ok", "{}"), "ok");
}

/// Work over large texts costs instructions, so that a rendering which was left ends.
#[test]
fn work_over_large_texts_costs_instructions() {
    let _lock = budget::stray_test_lock();
    let limits = RenderLimits { fuel: 50_000, ..LIMITS };
    for work in [
        "x in y",
        "y.find('b')",
        "y | upper",
        "y.split('b')",
        "y.strip()",
        "y[::2]",
        "y == z",
        "y[1:]",
        "y[::-1]",
        "y | length",
        "y | reverse",
        "y | int",
        "y | float",
        "[y] | unique | list",
        "{y: 1}",
        "{}.get(y)",
        "{}[y]",
        "'x'[y]",
        "'x' | attr(y)",
        "n[y]",
        "y is sameas z",
        "'a'.find(y)",
        "'a'.count(y)",
        "'a'.replace(y, '')",
        "'a'.split(y)",
        "'a'.partition(y)",
        "'a'.startswith(y)",
        "[y] | sort",
        "[y] | unique(attribute=y) | list",
        "[y, z] | min",
        "{'k': y} | dictsort(by='value')",
        "('%(' ~ y ~ ')s') % {y: 1}",
        "'{:s}'.format(y)",
        "y | truncate(1000000, end=z)",
        "y.translate({})",
        "{y: 1} | xmlattr",
        "y | striptags",
    ] {
        let source = format!(
            "{{% set y = 'a' * 1000000 %}}{{% set z = 'a' * 1000000 %}}{{% set x = 'b' %}}\
             {{% set n = namespace() %}}\
             {{% for i in range(1000) %}}{{% set q = {work} %}}{{% endfor %}}"
        );
        let failure = ChatTemplate::new(&source).unwrap().render("{}", &limits).unwrap_err();
        assert_eq!(failure.code, Code::Limit, "{work}: {}", failure.message);
    }
}

fn text_member<'a>(value: &'a serde_json::Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

/// Renders the cases of a file that tests/golden makes; the number that are not alike.
fn compare(document: &serde_json::Value, limits: &RenderLimits) -> usize {
    let limits = RenderLimits { now_unix_s: document["now_unix_s"].as_i64(), ..*limits };
    let (mut num_equal, mut num_refused, mut num_different) = (0, 0, 0);
    for case in document["cases"].as_array().unwrap() {
        let (name, source) = match case["template"].as_u64() {
            Some(at) => {
                let source = &document["sources"][at as usize];
                (text_member(source, "name"), text_member(source, "source"))
            }
            None => (text_member(case, "template"), text_member(case, "template")),
        };
        let variables = match case["variables"].as_u64() {
            Some(at) => &document["variable_sets"][at as usize],
            None => &document["variables"],
        };
        let rendered =
            ChatTemplate::new(source).and_then(|t| t.render(&variables.to_string(), &limits));
        match (rendered, case["right"].as_str()) {
            (Ok(text), Some(right)) if text == right => num_equal += 1,
            (Err(failure), None) if failure.code != Code::Internal => num_equal += 1,
            (Err(failure), _) => {
                num_refused += 1;
                println!("refused: {name}: {}", failure.message);
            }
            (Ok(text), right) => {
                num_different += 1;
                println!("different: {name}: {text:?}, right {right:?}");
            }
        }
    }
    println!("{num_equal} equal, {num_refused} refused, {num_different} different");
    num_refused + num_different
}

#[test]
fn expressions_render_as_jinja2_does() {
    let _lock = budget::stray_test_lock();
    let golden = include_str!("../../../../tests/golden/template_golden.json");
    let document: serde_json::Value = serde_json::from_str(golden).unwrap();
    assert!(document["cases"].as_array().unwrap().len() > 700);
    assert_eq!(compare(&document, &LIMITS), 0);
}

/// With BATON_TEMPLATE_CORPUS=FILE, which tests/golden/make_template_corpus.py writes.
#[test]
fn published_templates_render_as_jinja2_does() {
    let _lock = budget::stray_test_lock();
    let Ok(path) = std::env::var("BATON_TEMPLATE_CORPUS") else { return };
    let document: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    assert_eq!(compare(&document, &LIMITS), 0);
}

#[test]
fn parts_are_found_by_reading_the_source() {
    let _lock = budget::stray_test_lock();
    for (source, expected) in [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", PartsUse::None),
        ("{% for m in messages %}{% for p in m['content'] %}{{ p.text }}{% endfor %}{% endfor %}",
         PartsUse::Needs),
        ("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}\
          {% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}",
         PartsUse::Reads),
        ("{% macro show(c) %}{% if c is string %}{{ c }}{% else %}{% for p in c %}{{ p.text }}\
          {% endfor %}{% endif %}{% endmacro %}{% set all = messages[1:] %}\
          {% for m in all %}{{ show(m.content) }}{% endfor %}",
         PartsUse::Reads),
        ("{% for t in tools %}{% for p in t.content %}{% endfor %}{% endfor %}", PartsUse::None),
    ] {
        assert_eq!(ChatTemplate::new(source).unwrap().parts_use(), expected, "{source}");
    }
}

#[test]
fn a_template_reads_the_variables_that_its_expressions_name() {
    let _lock = budget::stray_test_lock();
    let source = "{% for m in messages if keep %}{{ m.effort }}{% endfor %}\
                  {% macro f(a, b=fallback) %}{{ a ~ 'documents' }}{% endmacro %}\
                  {% with x = inner %}{{ x | join(glue) }}{% endwith %}\
                  {% set mood = 1 %}{# hidden #}effort";
    let template = ChatTemplate::new(source).unwrap();
    for name in ["messages", "keep", "m", "a", "fallback", "inner", "glue"] {
        assert!(template.reads(name), "{name}");
    }
    for name in ["effort", "documents", "mood", "hidden", "f", ""] {
        assert!(!template.reads(name), "{name}");
    }
}

/// As above for values of many items: l has 30,000, d has 3,000 names.
#[test]
fn work_over_many_items_costs_instructions() {
    let _lock = budget::stray_test_lock();
    let limits = RenderLimits { fuel: 300_000, ..LIMITS };
    for work in [
        "l[1:]",
        "r[1:]",
        "r[::-1]",
        "l | list",
        "l + l",
        "l * 2",
        "l | reverse",
        "l | length ~ r[5:]",
        "dict(d)",
        "dict(**d)",
        "namespace(d)",
        "f(**d)",
        "f(*l)",
        "g(**d)",
        "d.items() | list",
        "d.keys() | list",
        "d.values() | list",
        "d | items | list",
        "d | dictsort",
        "d | urlencode",
        "'x'.format_map(d)",
        "[0] | map('string') | list ~ d.values() | list",
        "l | first ~ d | tojson",
        "l | groupby(attribute='real')",
        "l | sort",
        "l | unique | list",
        "l in [m]",
        "d == e",
        "0.5 in l",
        "l.count(1)",
        "d.keys() | reverse | list",
        "c.l",
    ] {
        let source = format!(
            "{{% macro f() %}}{{{{ varargs }}}}{{{{ kwargs }}}}{{% endmacro %}}\
             {{% macro g(a, b, c) %}}{{{{ kwargs }}}}{{% endmacro %}}\
             {{% set r = range(30000) %}}{{% set l = r | list %}}{{% set m = r | list %}}\
             {{% set d = dict.fromkeys(r[:3000] | map('string') | list, 1) %}}\
             {{% set e = dict(d) %}}\
             {{% set c = namespace(d) %}}{{% for i in range(99999) %}}{{% set q = {work} %}}\
             {{% endfor %}}"
        );
        let start = Instant::now();
        let failure = ChatTemplate::new(&source).unwrap().render("{}", &limits).unwrap_err();
        assert_eq!(failure.code, Code::Limit, "{work}: {}", failure.message);
        assert!(start.elapsed() < Duration::from_secs(20), "{work}: {:?}", start.elapsed());
    }
    let rest = "{% for x in range(99999) %}{% set q = loop | list %}{% endfor %}";
    assert_eq!(refused(rest).code, Code::Limit);
}

/// A text of '&' without an entity is not searched to its end for each of them.
#[test]
fn tags_are_stripped_in_one_pass() {
    let _lock = budget::stray_test_lock();
    let start = Instant::now();
    assert_eq!(text_of("{{ ('&' * 2000000) | striptags | length }}", "{}"), "2000000");
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    let source = "{{ '&amp;&#1114109;&lt;b &#65;&nope;' | striptags }}";
    assert_eq!(text_of(source, "{}"), "&\u{10fffd}<b A&nope;");
    // As Python's html.unescape has it, which markupsafe calls.
    let numbers = "a&#1114111;b&#xfdd0;c&#1114112;d&#128;e&#65f&#xd800;g&#99999999999999;h&#x;i&#;";
    let source = format!("{{{{ '{numbers}' | striptags }}}}");
    let expected = "abc\u{fffd}d\u{20ac}eAf\u{fffd}g\u{fffd}h&#x;i&#;";
    assert_eq!(text_of(&source, "{}"), expected);
}

/// Whatever may hold another of its kind counts its levels, because it is dropped level by level.
#[test]
fn chains_of_any_kind_are_as_deep_as_lists() {
    let _lock = budget::stray_test_lock();
    for next in
        ["{% set n.x = joiner(n.x) %}", "{% for y in [n.x] %}{% set n.x = loop %}{% endfor %}"]
    {
        let of = |rounds: u32| {
            format!(
                "{{% set n = namespace(x=1) %}}\
                 {{% for i in range({rounds}) %}}{next}{{% endfor %}}"
            )
        };
        assert_eq!(text_of(&of(400), "{}"), "", "{next}");
        let failure = refused(&of(2_000));
        assert_eq!(failure.code, Code::Limit, "{next}");
        assert!(failure.message.contains("deeper than 1000 levels"), "{}", failure.message);
    }
}

#[test]
fn calls_from_the_deepest_place_fit_the_stack() {
    let _lock = budget::stray_test_lock();
    let source = format!(
        "{{% macro m() %}}{}{{{{ {}m(){} }}}}{}{{% endmacro %}}{{{{ m() }}}}",
        "{% if 1 %}".repeat(90),
        "[".repeat(90),
        "]".repeat(90),
        "{% endif %}".repeat(90),
    );
    let failure = refused(&source);
    assert_eq!(failure.code, Code::Limit, "{}", failure.message);
    assert!(failure.message.contains("recursed deeper"), "{}", failure.message);
}

#[test]
fn a_rendering_frees_what_holds_itself() {
    let _lock = budget::stray_test_lock();
    for source in [
        "{% for x in ['a', 'b'] %}{{ loop.changed(loop) }}{% endfor %}",
        "{% for x in ['a', 'b'] %}{{ loop.changed([loop.changed, joiner(loop)]) }}{% endfor %}",
        "{% for x in ['a'] %}{% set f = loop.changed %}{{ f(f) }}{{ f(1) }}{{ f(f) }}{% endfor %}",
        "{% for x in ['a'] %}{{ loop.changed(loop) }}{{ x.y.z }}{% endfor %}",
        "{% set n = namespace() %}{% set n.n = [n] %}{% macro m() %}{{ m }}{% endmacro %}",
    ] {
        let template = Template::new(source).unwrap_or_else(|e| panic!("{source}: {}", e.message));
        let (before, after) = budget::run(&LIMITS.bounds, move || {
            let before = budget::bytes_above_reserve();
            drop(template.render("{}", 10_000, None, 10_000));
            Ok((before, budget::bytes_above_reserve()))
        })
        .unwrap();
        assert_eq!(before, after, "{source}");
    }
}
