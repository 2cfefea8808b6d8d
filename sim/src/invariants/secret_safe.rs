//! **secret-safe**: no secret that was ever stored is anywhere else: not in a line, a file, an argument or an
//! environment, be it raw, as hex or as Base64.

use std::collections::BTreeMap;
use std::ops::Bound::{Included, Unbounded};
use std::path::Path;

use crate::observer::{Observer, Violation, WorldView};
use crate::trace::{Kind, Line};

/// Every spelling of every secret, with the secret's name.
#[derive(Default)]
pub(super) struct SecretSafe {
    spellings: BTreeMap<Vec<u8>, String>,
    /// What spellings begin with: nearly every place of a text is told apart by its first two bytes. A table, since
    /// every byte of every line is looked up.
    beginnings: Vec<bool>,
    stored: u64,
}

impl Observer for SecretSafe {
    fn id(&self) -> &'static str {
        "secret-safe"
    }

    fn line(&mut self, line: &Line, world: &WorldView<'_>) -> Result<(), Violation> {
        if line.kind == Kind::Effect && line.text == "secret.store" && line.field("failed").is_empty() {
            self.learn(line.field("name"), world);
        }
        self.search(line.to_string().as_bytes(), || "a line of the trace".to_owned())?;
        if line.kind == Kind::Process && line.text == "started" {
            for process in world.processes().iter().filter(|process| process.label == line.process) {
                let words = process.args.iter().chain(process.env.values());
                for word in words {
                    self.search(word.as_bytes(), || format!("what {} was started with", process.label))?;
                }
            }
        }
        Ok(())
    }

    fn judged(&self) -> Vec<(&'static str, u64)> {
        vec![("spellings looked for", self.spellings.len() as u64)]
    }

    fn end(&mut self, world: &WorldView<'_>) -> Result<(), Violation> {
        if self.stored > 0 && self.spellings.is_empty() {
            // Without what it looks for, this invariant would hold whatever happened.
            let seen = "none of them was found where secrets are".to_owned();
            return Err(violation(format!("{} secrets were stored", self.stored), seen));
        }
        for (path, bytes) in world.files().filter(|(path, _)| !is_secret(path)) {
            self.search(bytes, || path.display().to_string())?;
        }
        Ok(())
    }
}

impl SecretSafe {
    fn learn(&mut self, name: &str, world: &WorldView<'_>) {
        self.stored += 1;
        let is_it = |path: &Path| is_secret(path) && path.file_name().is_some_and(|file| file == name);
        for (_, secret) in world.files().filter(|(path, _)| is_it(path)) {
            let raw = decoded(secret).unwrap_or_else(|| secret.to_vec());
            let hex: String = raw.iter().map(|byte| format!("{byte:02x}")).collect();
            let spellings = [
                secret.to_vec(),
                raw.clone(),
                hex.to_uppercase().into_bytes(),
                base64(&raw),
                base64(secret),
                hex.into_bytes(),
            ];
            for spelling in spellings {
                self.add(spelling, name);
            }
        }
    }

    fn add(&mut self, spelling: Vec<u8>, name: &str) {
        let [first, second, ..] = spelling[..] else { return };
        self.beginnings.resize(1 << 16, false);
        self.beginnings[beginning(first, second)] = true;
        self.spellings.insert(spelling, name.to_owned());
    }

    fn search(&self, text: &[u8], whose: impl FnOnce() -> String) -> Result<(), Violation> {
        for (at, pair) in text.windows(2).enumerate() {
            if !self.beginnings.get(beginning(pair[0], pair[1])).is_some_and(|begins| *begins) {
                continue;
            }
            // Whatever begins this rest sorts right before it; no spelling is another one's beginning.
            let rest = &text[at..];
            let below = self.spellings.range::<[u8], _>((Unbounded, Included(rest))).next_back();
            if let Some((_, name)) = below.filter(|(spelling, _)| rest.starts_with(spelling)) {
                let seen = format!("{} holds it at byte {at}", whose());
                return Err(violation(format!("secret {name} is in the secret store alone"), seen));
            }
        }
        Ok(())
    }
}

fn beginning(first: u8, second: u8) -> usize {
    usize::from(u16::from_be_bytes([first, second]))
}

fn is_secret(path: &Path) -> bool {
    path.parent().and_then(Path::file_name).is_some_and(|directory| directory == "secrets")
}

fn decoded(hex: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let pairs = hex.chunks(2).map(|pair| match pair {
        [high, low] => Some(digit(high)? << 4 | digit(low)?),
        _ => None,
    });
    pairs.collect()
}

/// Without its padding, which an embedding may leave out; `+` and `/` are spelled as most encoders do.
fn base64(bytes: &[u8]) -> Vec<u8> {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = Vec::new();
    for chunk in bytes.chunks(3) {
        let mut group = [0_u8; 4];
        group[1..=chunk.len()].copy_from_slice(chunk);
        let bits = u32::from_be_bytes(group);
        for place in 0..=chunk.len() {
            let index = bits >> (18 - 6 * place) & 63;
            text.push(ALPHABET[index as usize]);
        }
    }
    text
}

fn violation(expected: String, seen: String) -> Violation {
    Violation::new("secret-safe", "O-001.1", expected, seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_found_in_every_spelling_and_anywhere_in_a_text() {
        assert_eq!(base64(b"any carnal pleas"), b"YW55IGNhcm5hbCBwbGVhcw");
        assert_eq!(decoded(b"00ff7A"), Some(vec![0, 255, 0x7a]));
        let mut safe = SecretSafe::default();
        for spelling in [&b"abc"[..], b"abd", b"bb"] {
            safe.add(spelling.to_vec(), "name");
        }
        for found in ["xxabcxx", "abd", "xxabb"] {
            assert!(safe.search(found.as_bytes(), String::new).is_err(), "{found}");
        }
        assert!(safe.search(b"abaxab", String::new).is_ok());
    }
}
