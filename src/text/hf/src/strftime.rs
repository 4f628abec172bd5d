//! strftime over UTC for templates that print the date: the directives of C89 that do not depend
//! on a locale. An unknown directive is copied as it stands.

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Year, month 1..12, day 1..31 of a day counted from 1970-01-01 (proleptic Gregorian; the year is
/// counted from 1 March so that the leap day comes last).
fn civil(days: i64) -> (i64, usize, i64) {
    let shifted = days + 719_468; // from 0000-03-01
    let era = shifted.div_euclid(146_097); // days in 400 years
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    (year, month as usize, day)
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

pub fn strftime(format: &str, unix_s: i64) -> String {
    let (days, second) = (unix_s.div_euclid(86_400), unix_s.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let weekday = (days + 4).rem_euclid(7) as usize;
    let lengths = [31, 28 + i64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let day_of_year: i64 = lengths[..month - 1].iter().sum::<i64>() + day;
    let hour12 = (hour + 11) % 12 + 1;

    let mut out = String::with_capacity(format.len() + 16);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('Y') => out.push_str(&year.to_string()),
            Some('y') => out.push_str(&format!("{:02}", year.rem_euclid(100))),
            Some('m') => out.push_str(&format!("{month:02}")),
            Some('d') => out.push_str(&format!("{day:02}")),
            Some('j') => out.push_str(&format!("{day_of_year:03}")),
            Some('H') => out.push_str(&format!("{hour:02}")),
            Some('I') => out.push_str(&format!("{hour12:02}")),
            Some('M') => out.push_str(&format!("{minute:02}")),
            Some('S') => out.push_str(&format!("{second:02}")),
            Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
            Some('B') => out.push_str(MONTHS[month - 1]),
            Some('b') => out.push_str(&MONTHS[month - 1][..3]),
            Some('A') => out.push_str(DAYS[weekday]),
            Some('a') => out.push_str(&DAYS[weekday][..3]),
            Some('w') => out.push_str(&weekday.to_string()),
            Some('Z') => out.push_str("UTC"),
            Some('z') => out.push_str("+0000"),
            Some('%') => out.push('%'),
            Some(other) => out.extend(['%', other]),
            None => out.push('%'),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dates() {
        // Expected values from GNU date -u -d @N +FORMAT.
        let format = "%Y-%m-%d %H:%M:%S %a %A %b %B %j %y %I %p %w %%";
        for (unix_s, expected) in [
            (0, "1970-01-01 00:00:00 Thu Thursday Jan January 001 70 12 AM 4 %"),
            (951_782_400, "2000-02-29 00:00:00 Tue Tuesday Feb February 060 00 12 AM 2 %"),
            (1_735_689_599, "2024-12-31 23:59:59 Tue Tuesday Dec December 366 24 11 PM 2 %"),
            (4_107_542_400, "2100-03-01 00:00:00 Mon Monday Mar March 060 00 12 AM 1 %"),
            (-1, "1969-12-31 23:59:59 Wed Wednesday Dec December 365 69 11 PM 3 %"),
        ] {
            assert_eq!(strftime(format, unix_s), expected);
        }
        assert_eq!(strftime("%d %b %Y", 1_753_488_000), "26 Jul 2025");
        assert_eq!(strftime("%Q%", 0), "%Q%");
    }

    #[test]
    fn extreme_times_do_not_panic() {
        for unix_s in [i64::MIN, i64::MAX] {
            assert!(!strftime("%Y-%m-%d", unix_s).is_empty());
        }
    }
}
