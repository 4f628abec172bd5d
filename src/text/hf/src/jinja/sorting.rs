//! Python's sorted(): stable, and only `<` is asked.

use std::cmp::Ordering;

use super::error::{charge_work, Res};
use super::ops::order;
use super::value::Value;

fn less(a: &Value, b: &Value) -> Res<bool> {
    Ok(order(a, b, "<")? == Some(Ordering::Less))
}

/// Where the items of sorted(keys) stood. A merge sort: the standard library's may panic when the
/// order is none (NaN), and cannot fail.
pub fn sorted_places(keys: Vec<Value>, reverse: bool) -> Res<Vec<usize>> {
    charge_work(keys.len().saturating_mul(size_of::<usize>() * 2))?;
    let mut places: Vec<usize> = (0..keys.len()).collect();
    if reverse {
        places.reverse();
    }
    let mut width = 1;
    while width < places.len() {
        let mut merged = Vec::with_capacity(places.len());
        for run in places.chunks(2 * width) {
            let (mut left, mut right) = run.split_at(width.min(run.len()));
            while let (Some(a), Some(b)) = (left.first(), right.first()) {
                if less(&keys[*b], &keys[*a])? {
                    merged.push(*b);
                    right = &right[1..];
                } else {
                    merged.push(*a);
                    left = &left[1..];
                }
            }
            merged.extend_from_slice(left);
            merged.extend_from_slice(right);
        }
        places = merged;
        width *= 2;
    }
    if reverse {
        places.reverse();
    }
    Ok(places)
}
