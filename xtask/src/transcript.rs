//! What a transcript must be, whoever was killed meanwhile.

use crate::cargo::Failed;

/// Fails unless these are exactly the chunks of turns that said so many each: whole, in order, without duplicates.
/// The scripted agent begins each with `<turn>.<n>`.
pub(crate) fn require_whole(texts: &[String], turns: &[usize]) -> Result<(), Failed> {
    let said: usize = turns.iter().sum();
    if texts.len() != said {
        return Err(Failed(format!("the transcript has {} chunks of {said}", texts.len())));
    }
    let numbers = (1..).zip(turns).flat_map(|(turn, count)| (1..=*count).map(move |n| (turn, n)));
    for (place, ((turn, n), text)) in numbers.zip(texts).enumerate() {
        let (turn, place): (usize, usize) = (turn, place + 1);
        let expected = format!("{turn}.{n} ");
        if !text.starts_with(&expected) {
            return Err(Failed(format!("chunk {place} of the transcript is {text:?}, not {expected:?}")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(starts: &[&str]) -> Vec<String> {
        starts.iter().map(|start| format!("{start} and more")).collect()
    }

    #[test]
    fn a_lost_a_doubled_and_a_swapped_chunk_are_seen() {
        require_whole(&texts(&["1.1", "1.2", "2.1"]), &[2, 1]).unwrap();
        for wrong in [
            &["1.1", "1.2"][..],
            &["1.1", "1.1", "2.1"],
            &["1.2", "1.1", "2.1"],
            &["1.1", "1.2", "2.1", "2.1"],
        ] {
            assert!(require_whole(&texts(wrong), &[2, 1]).is_err(), "{wrong:?}");
        }
    }
}
