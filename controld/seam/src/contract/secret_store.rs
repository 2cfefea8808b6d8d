//! What every secret store keeps to.

use std::io::ErrorKind;

use super::soon;
use crate::Seams;

/// The contract of [`SecretStore`](crate::SecretStore), on a store that is still empty.
pub async fn secret_store(seams: &Seams) {
    soon(seams, "the secret store", keeps_and_refuses(seams)).await;
}

async fn keeps_and_refuses(seams: &Seams) {
    let secrets = seams.secrets.as_ref();
    assert_eq!(secrets.names().await.expect("an empty store lists nothing"), Vec::<String>::new());
    let missing = secrets.load("server-1").await.expect_err("nothing was stored");
    assert_eq!(missing.kind(), ErrorKind::NotFound);

    secrets.store("server-2", b"second").await.expect("a new name");
    secrets.store("server-1", b"first \0\xff").await.expect("a new name");
    secrets.store("empty", b"").await.expect("a secret may be empty");
    assert_eq!(secrets.load("server-1").await.expect("stored"), b"first \0\xff");
    assert_eq!(secrets.load("server-2").await.expect("stored"), b"second");
    assert_eq!(secrets.load("empty").await.expect("stored"), b"");
    assert_eq!(secrets.names().await.expect("listed"), ["empty", "server-1", "server-2"]);

    let taken = secrets.store("server-1", b"another").await.expect_err("a secret is never overwritten");
    assert_eq!(taken.kind(), ErrorKind::AlreadyExists);
    assert_eq!(secrets.load("server-1").await.expect("stored"), b"first \0\xff", "the first one stays");

    let longest = "n".repeat(128);
    let too_long = "n".repeat(129);
    for name in ["", "..", "a/b", "/etc/passwd", "Upper", "under_score", "with space", "dot.ted", &too_long] {
        let refused = secrets.store(name, b"x").await.expect_err("a bad name");
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{name:?}");
    }
    secrets.store(&longest, b"long").await.expect("128 characters are allowed");
    secrets.remove(&longest).await.expect("removed");

    secrets.remove("server-1").await.expect("removed");
    secrets.remove("server-1").await.expect("it is fine if it is not there");
    assert_eq!(secrets.load("server-1").await.expect_err("removed").kind(), ErrorKind::NotFound);
    assert_eq!(secrets.names().await.expect("listed"), ["empty", "server-2"]);
    secrets.store("server-1", b"reborn").await.expect("a removed name is new again");
    assert_eq!(secrets.load("server-1").await.expect("stored"), b"reborn");
}
