//! Wall time as people and HTTP write it.

use crate::Wall;

impl Wall {
    /// As in `2026-03-01T09:05:00.123Z`.
    pub fn rfc3339(self) -> String {
        let Civil { year, month, day, hour, minute, second, .. } = civil(self);
        let millis = self.unix_millis % 1000;
        format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{millis:03}Z")
    }

    /// As in `Sun, 01 Mar 2026 09:05:00 GMT` (RFC 9110), for the `Date` header.
    pub fn http_date(self) -> String {
        let Civil { year, month, day, weekday, hour, minute, second } = civil(self);
        let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][weekday];
        let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
        let month = months[month - 1];
        format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
    }
}

struct Civil {
    year: u64,
    month: usize,
    day: u64,
    /// Days since Thursday, the epoch's.
    weekday: usize,
    hour: u64,
    minute: u64,
    second: u64,
}

fn civil(at: Wall) -> Civil {
    let seconds = at.unix_millis / 1000;
    let days = seconds / 86_400;
    // Counted from 0000-03-01, so that the leap day is the last of its year and of its 400-year era.
    let shifted = days + 719_468;
    let era = shifted / 146_097;
    let day_of_era = shifted % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    Civil {
        year: year_of_era + era * 400 + u64::from(month <= 2),
        month: usize::try_from(month).expect("1 to 12"),
        day: day_of_year - (153 * month_from_march + 2) / 5 + 1,
        weekday: usize::try_from(days % 7).expect("0 to 6"),
        hour: seconds / 3_600 % 24,
        minute: seconds / 60 % 60,
        second: seconds % 60,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_instants_are_written_as_known() {
        for (unix_millis, rfc, http) in [
            (0, "1970-01-01T00:00:00.000Z", "Thu, 01 Jan 1970 00:00:00 GMT"),
            (951_782_400_001, "2000-02-29T00:00:00.001Z", "Tue, 29 Feb 2000 00:00:00 GMT"),
            (784_111_777_000, "1994-11-06T08:49:37.000Z", "Sun, 06 Nov 1994 08:49:37 GMT"),
            (4_107_542_399_999, "2100-02-28T23:59:59.999Z", "Sun, 28 Feb 2100 23:59:59 GMT"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z", "Mon, 01 Mar 2100 00:00:00 GMT"),
        ] {
            assert_eq!(rfc, Wall { unix_millis }.rfc3339());
            assert_eq!(http, Wall { unix_millis }.http_date());
        }
    }
}
