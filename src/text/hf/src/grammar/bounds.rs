//! Bounds of numbers in the form that llguidance keeps.

use serde_json::{Map, Value};

/// The bound beside 0. llguidance writes every digit of a bound, and nobody means a number that is
/// nearer to 0 and not 0.
const BESIDE_ZERO: f64 = 1e-30;

/// Turns whole exclusive bounds on the side of 0 into the nearest inclusive ones. llguidance 1.9.1
/// takes such a bound itself where the other bound has the same whole part: 0 for
/// `exclusiveMinimum: 0, maximum: 0.5`, and -5 for `minimum: -5.5, exclusiveMaximum: -5`.
pub fn close_whole_bounds(members: &mut Map<String, Value>) {
    close(members, ["minimum", "exclusiveMinimum"], 1.0);
    close(members, ["maximum", "exclusiveMaximum"], -1.0);
}

/// `keys`: of the inclusive bound and of the exclusive one, which draft 4 writes as true. `sign`: 1
/// for a lower bound of numbers of 0 and above, -1 for an upper bound of those of 0 and below.
fn close(members: &mut Map<String, Value>, keys: [&str; 2], sign: f64) {
    let [inclusive, exclusive] = keys.map(|key| members.get(key).cloned());
    let inclusive = inclusive.and_then(|bound| bound.as_f64());
    let bound = match exclusive {
        Some(Value::Bool(true)) => inclusive,
        bound => bound.and_then(|bound| bound.as_f64()),
    };
    let size = bound.map(|bound| bound * sign).filter(|size| *size >= 0.0 && size.fract() == 0.0);
    let Some(size) = size else { return };
    let nearest = if size == 0.0 { BESIDE_ZERO } else { size.next_up() };
    let size = inclusive.map_or(nearest, |other| nearest.max(other * sign));
    members.shift_remove(keys[1]);
    members.insert(keys[0].to_string(), Value::from(size * sign));
}
