//! The `Date` header's format, from the Clock seam instead of the system's clock.

use seam::Wall;

/// As in `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110).
pub(crate) fn http_date(now: Wall) -> String {
    let seconds = now.unix_millis / 1000;
    let (days, second_of_day) = (seconds / 86_400, seconds % 86_400);
    let weekday = WEEKDAYS[usize::try_from((days + 4) % 7).expect("below seven")];
    let (year, month, day) = civil(days);
    let month = MONTHS[usize::try_from(month - 1).expect("below twelve")];
    let (hour, minute, second) = (second_of_day / 3_600, second_of_day / 60 % 60, second_of_day % 60);
    format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
}

/// Days since 1970-01-01 as year, month and day of the Gregorian calendar, counted in eras of 400 years that
/// begin on the first of March, so that the leap day is the last of its year.
fn civil(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

const WEEKDAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        let date = |seconds: u64| http_date(Wall { unix_millis: seconds * 1000 });
        assert_eq!(date(0), "Thu, 01 Jan 1970 00:00:00 GMT");
        assert_eq!(date(784_111_777), "Sun, 06 Nov 1994 08:49:37 GMT");
        assert_eq!(date(951_782_400), "Tue, 29 Feb 2000 00:00:00 GMT");
        assert_eq!(date(1_772_323_199), "Sat, 28 Feb 2026 23:59:59 GMT");
    }
}
