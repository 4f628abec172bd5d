//! Bounds of numbers: what a schema takes, compared with the numbers themselves.

use serde_json::{json, Map, Value};

use super::tests::{strict, takes};

/// Bounds that share a whole part, differ in it, or are whole themselves.
const BOUNDS: [f64; 19] = [
    -10.01, -10.0, -5.5, -5.0, -1.25, -1.0, -0.5, -0.001, 0.0, 1e-7, 0.001, 0.5, 1.0, 1.25, 5.0,
    5.5, 9.99, 10.0, 100.0,
];
const LOWER: [&str; 2] = ["minimum", "exclusiveMinimum"];
const UPPER: [&str; 2] = ["maximum", "exclusiveMaximum"];

/// The spellings near each bound, of numbers on both of its sides.
fn spellings() -> Vec<String> {
    let mut out: Vec<String> = ["-0", "0.0", "-0.0", "5.0", "-5.00", "0.0000000", "-0.00001"]
        .iter()
        .map(|text| text.to_string())
        .collect();
    for bound in BOUNDS {
        for step in [-0.25, -0.0004, 0.0, 0.0004, 0.25] {
            let digits = format!("{:.7}", bound + step);
            out.push(digits.trim_end_matches('0').trim_end_matches('.').to_string());
        }
    }
    out
}

fn fits(number: f64, bounds: &Map<String, Value>) -> bool {
    bounds.iter().all(|(key, bound)| {
        let bound = bound.as_f64().expect("a bound is a number");
        match key.as_str() {
            "minimum" => number >= bound,
            "exclusiveMinimum" => number > bound,
            "maximum" => number <= bound,
            _ => number < bound,
        }
    })
}

/// Each range that has more than one number, open and closed at both ends.
fn ranges() -> Vec<Map<String, Value>> {
    let mut out = Vec::new();
    for (i, low) in BOUNDS.iter().enumerate() {
        for high in &BOUNDS[i + 1..] {
            for (lower, upper) in LOWER.iter().flat_map(|l| UPPER.iter().map(move |u| (l, u))) {
                let range = json!({*lower: low, *upper: high});
                out.extend(range.as_object().cloned());
            }
        }
        let half_open = LOWER.iter().chain(&UPPER).map(|key| json!({*key: low}));
        out.extend(half_open.filter_map(|range| range.as_object().cloned()));
    }
    out
}

#[test]
fn a_number_is_taken_exactly_where_its_bounds_hold() {
    let spellings = spellings();
    let mut wrong = Vec::new();
    for range in ranges() {
        let mut schema = range.clone();
        schema.insert("type".to_string(), json!("number"));
        let grammar = strict(&Value::Object(schema));
        for text in &spellings {
            let number: f64 = text.parse().unwrap();
            let has_end_of_zeros = text.contains('.') && text.ends_with('0');
            let is_taken = takes(&grammar, text);
            // Numbers with zeros at their end and -0 may be left out; some need such a zero.
            let has_other_spelling = || text.contains('.') && takes(&grammar, &format!("{text}0"));
            let may_differ =
                !is_taken && (has_end_of_zeros || text == "-0" || has_other_spelling());
            if is_taken != fits(number, &range) && !may_differ {
                wrong.push(format!("{range:?}: {text} {is_taken}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{} of {wrong:#?}", wrong.len());
}
