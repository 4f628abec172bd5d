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
    assert_eq!(failure.message, "roles must alternate");
}

#[test]
fn bad_templates_and_variables_say_where() {
    let _lock = budget::stray_test_lock();
    let failure = ChatTemplate::new("line\n{% if %}").unwrap_err();
    assert_eq!(failure.code, Code::InvalidArgument);
    assert!(failure.message.contains("chat_template:2"), "{}", failure.message);
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
    ] {
        let start = Instant::now();
        let failure = refused(source);
        assert_eq!(failure.code, Code::Limit, "{source}: {}", failure.message);
        assert!(start.elapsed() < Duration::from_secs(20), "{source}: {:?}", start.elapsed());
    }
}

#[test]
fn growth_hits_the_memory_limit_soon() {
    let _lock = budget::stray_test_lock();
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
        budget::reset_strays_for_test();
        let start = Instant::now();
        let failure = refused(&source);
        assert_eq!(failure.code, Code::Limit, "{source}: {}", failure.message);
        assert!(start.elapsed() < Duration::from_secs(20), "{source}: {:?}", start.elapsed());
    }
    budget::reset_strays_for_test();
}

/// Values nest as deeply as the fuel allows; each recursive walk over them must fit the stack.
#[test]
fn the_deepest_values_fit_the_stack() {
    let _lock = budget::stray_test_lock();
    let limits = RenderLimits {
        fuel: MAX_FUEL,
        bounds: Bounds { memory_bytes: 4 << 30, timeout: Duration::from_secs(100) },
        max_output_bytes: 1 << 30,
        now_unix_s: None,
    };
    for last in ["", "{{ n.x }}", "{{ n.x|tojson }}", "{{ n.x == n.y }}", "{{ [n.x, n.y]|sort }}"] {
        for (wrap, rounds) in [("[n.x]", 49_999), ("{'k': n.x}", 44_000)] {
            let source = format!(
                "{{% set n = namespace(x=[], y=[]) %}}{{% for i in range({rounds}) %}}\
                 {{% for j in range(4) %}}\
                 {{% set n.x = {wrap} %}}{{% endfor %}}{{% endfor %}}{last}"
            );
            // The nesting is what the fuel just allows; a crash of the process is the failure.
            let outcome = ChatTemplate::new(&source).unwrap().render("{}", &limits);
            assert!(outcome.is_ok(), "{wrap} {last}: {}", outcome.unwrap_err().message);
        }
    }
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
        ["{{a}}", "{{a.b[c]}}", "{{a|b}}", "{{1+1}}", "{%if a%}b{%endif%}", "{%set a=1%}", "a"]
    {
        let source = unit.repeat(MAX_SOURCE_BYTES / unit.len());
        let outcome = ChatTemplate::new(&source);
        assert!(outcome.is_ok(), "{unit}: {}", outcome.unwrap_err().message);
    }
    let flat = format!("{{{{ [{}1] }}}}", "a,".repeat(MAX_SOURCE_BYTES / 2 - 8));
    let outcome = ChatTemplate::new(&flat);
    assert!(outcome.is_ok(), "a list: {}", outcome.unwrap_err().message);
}

/// Constants are computed when a source is compiled, and what they take counts.
#[test]
fn constants_hit_the_memory_limit_of_compiling() {
    let _lock = budget::stray_test_lock();
    budget::reset_strays_for_test();
    for source in ["{{ 'x' * 70000000 }}".to_string(), "{{ 'x' * 1000000 }}".repeat(100)] {
        let failure = ChatTemplate::new(&source).unwrap_err();
        assert_eq!(failure.code, Code::Limit, "{}", failure.message);
    }
    budget::reset_strays_for_test();
}
