use super::*;
use crate::quic::Authority;
use rcgen::{CertificateParams, KeyPair, SanType};
use std::time::Duration;
use tempfile::TempDir;

/// A folder with everything a worker needs, and the authority.
fn folder() -> (TempDir, Authority) {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create("test cluster").unwrap();
    authority.write(dir.path()).unwrap();
    authority.issue(Role::Worker, "w0", 30).unwrap().write(dir.path()).unwrap();
    (dir, authority)
}

/// Loads the worker's files after `damage`; the error must read as `line`, `DIR` for the folder.
fn check(line: &str, damage: impl FnOnce(&Path, &Authority)) {
    let (dir, authority) = folder();
    damage(dir.path(), &authority);
    let error = Credentials::load_from(dir.path(), Role::Worker).unwrap_err().to_string();
    assert_eq!(error.replace(dir.path().to_str().unwrap(), "DIR"), line);
}

#[test]
fn what_the_authority_writes_loads_for_every_role() {
    let (dir, authority) = folder();
    for role in Role::ALL {
        authority.issue(role, "node", 1).unwrap().write(dir.path()).unwrap();
        let credentials = Credentials::load_from(dir.path(), role).unwrap();
        assert_eq!(credentials.role(), role);
    }
}

#[test]
fn a_loaded_authority_signs_for_the_same_cluster() {
    let (dir, authority) = folder();
    let again = Authority::load(dir.path()).unwrap();
    assert_eq!(again.ca_pem(), authority.ca_pem());
    let identity = again.issue(Role::Server, "s0", 30).unwrap();
    let server = Credentials::from_identity(authority.ca_pem(), &identity).unwrap();
    let worker = Credentials::load_from(dir.path(), Role::Worker).unwrap();
    assert_eq!(server.ca_fingerprint(), worker.ca_fingerprint());
}

#[cfg(unix)]
#[test]
fn keys_are_for_their_owner_alone_also_after_a_renewal() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, authority) = folder();
    authority.issue(Role::Worker, "w0", 30).unwrap().write(dir.path()).unwrap();
    for (file, mode) in [("ca.key", 0o600), ("worker.key", 0o600)] {
        let seen = std::fs::metadata(dir.path().join(file)).unwrap().permissions().mode();
        assert_eq!(seen & 0o777, mode, "{file}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 4, "nothing half-written is left");
    Credentials::load_from(dir.path(), Role::Worker).unwrap();
}

#[test]
fn an_authority_is_never_overwritten() {
    let (dir, _authority) = folder();
    let error = Authority::create("second").unwrap().write(dir.path()).unwrap_err();
    assert!(matches!(error, CertError::Exists { .. }), "{error}");
}

#[test]
fn an_authority_with_another_key_is_refused() {
    let (dir, _authority) = folder();
    let other = tempfile::tempdir().unwrap();
    Authority::create("other").unwrap().write(other.path()).unwrap();
    std::fs::copy(other.path().join("ca.key"), dir.path().join("ca.key")).unwrap();
    let error = Authority::load(dir.path()).unwrap_err();
    assert!(matches!(error, CertError::KeyMismatch { .. }), "{error}");
}

#[test]
fn a_missing_file_is_named() {
    let advice = "does not exist: make certificates with `slackline certs`";
    for (file, what) in
        [("ca.pem", "CA certificate"), ("worker.pem", "certificate"), ("worker.key", "key")]
    {
        check(&format!("{what} DIR/{file} {advice}"), |dir, _| {
            std::fs::remove_file(dir.join(file)).unwrap();
        });
    }
}

#[test]
fn an_unreadable_file_is_named() {
    // A folder in the file's place cannot be read, not even by root.
    check("key DIR/worker.key cannot be read: Is a directory (os error 21)", |dir, _| {
        std::fs::remove_file(dir.join("worker.key")).unwrap();
        std::fs::create_dir(dir.join("worker.key")).unwrap();
    });
}

#[test]
fn a_file_that_is_not_pem_is_named() {
    check("certificate DIR/worker.pem is not PEM: no CERTIFICATE section", |dir, _| {
        std::fs::write(dir.join("worker.pem"), "hello").unwrap();
    });
    check("key DIR/worker.key is not PEM: no items found", |dir, _| {
        std::fs::write(dir.join("worker.key"), [0xff, 0x00, 0x80]).unwrap();
    });
    check("CA certificate DIR/ca.pem is not PEM: no CERTIFICATE section", |dir, _| {
        std::fs::copy(dir.join("ca.key"), dir.join("ca.pem")).unwrap();
    });
}

#[test]
fn a_pem_file_with_rubbish_inside_is_named() {
    let rubbish = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    check("certificate DIR/worker.pem is not usable: TrailingData(SignedData)", |dir, _| {
        std::fs::write(dir.join("worker.pem"), rubbish).unwrap();
    });
}

#[test]
fn a_key_of_another_certificate_is_told() {
    check("key DIR/worker.key does not belong to certificate DIR/worker.pem", |dir, authority| {
        let other = authority.issue(Role::Worker, "w1", 30).unwrap();
        std::fs::write(dir.join("worker.key"), other.key_pem).unwrap();
    });
}

#[test]
fn an_expired_certificate_is_told_with_its_date() {
    let line = "certificate DIR/worker.pem expired on 2001-09-09 01:46:40 UTC: make certificates \
                with `slackline certs`";
    check(line, |dir, authority| {
        let end = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let begin = end - Duration::from_secs(60);
        authority.issue_between(Role::Worker, "w0", begin, end).unwrap().write(dir).unwrap();
    });
}

#[test]
fn a_certificate_of_the_future_points_at_the_clock() {
    let line = "certificate DIR/worker.pem is valid only from 2096-10-02 07:06:40 UTC: check this \
                machine's clock";
    check(line, |dir, authority| {
        let begin = SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000);
        let end = begin + Duration::from_secs(60);
        authority.issue_between(Role::Worker, "w0", begin, end).unwrap().write(dir).unwrap();
    });
}

#[test]
fn a_certificate_of_another_authority_is_told_whatever_its_name() {
    for name in ["another cluster", "test cluster"] {
        check("certificate DIR/worker.pem is not signed by the CA in DIR/ca.pem", |dir, _| {
            let stranger = Authority::create(name).unwrap();
            stranger.issue(Role::Worker, "w0", 30).unwrap().write(dir).unwrap();
        });
    }
}

#[test]
fn a_certificate_of_another_role_is_told_with_both() {
    check("certificate DIR/worker.pem is a server's, a worker's is needed", |dir, authority| {
        let server = authority.issue(Role::Server, "s0", 30).unwrap();
        std::fs::write(dir.join("worker.pem"), server.cert_pem).unwrap();
        std::fs::write(dir.join("worker.key"), server.key_pem).unwrap();
    });
}

#[test]
fn a_validity_outside_its_range_is_refused() {
    let (_dir, authority) = folder();
    for days in [0, 3651, u32::MAX] {
        let line = authority.issue(Role::Worker, "w0", days).unwrap_err().to_string();
        assert_eq!(line, format!("a certificate may be valid for 1 to 3650 days, not {days}"));
    }
}

#[test]
fn the_authority_cannot_speak_for_a_name_outside_the_cluster() {
    let ca_key = KeyPair::generate().unwrap();
    let dir = tempfile::tempdir().unwrap();
    Authority::create("test cluster").unwrap().write(dir.path()).unwrap();
    let ca_pem = std::fs::read_to_string(dir.path().join("ca.pem")).unwrap();
    let stolen =
        KeyPair::from_pem(&std::fs::read_to_string(dir.path().join("ca.key")).unwrap()).unwrap();
    let issuer = rcgen::Issuer::from_ca_cert_pem(&ca_pem, stolen).unwrap();
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::DnsName("bank.example".try_into().unwrap())];
    let cert_pem = params.signed_by(&ca_key, &issuer).unwrap().pem();
    let identity = Identity { role: Role::Worker, cert_pem, key_pem: ca_key.serialize_pem() };
    let line = Credentials::from_identity(&ca_pem, &identity).unwrap_err().to_string();
    assert!(line.contains("NameConstraintViolation"), "{line}");
}

#[test]
fn secrets_do_not_reach_a_log() {
    let (dir, authority) = folder();
    let identity = authority.issue(Role::Worker, "w0", 30).unwrap();
    let credentials = Credentials::load_from(dir.path(), Role::Worker).unwrap();
    let shown = format!("{authority:?} {identity:?} {credentials:?}");
    assert!(!shown.contains("PRIVATE") && shown.len() < 800, "{shown}");
}
