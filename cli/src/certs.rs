//! `slackline certs`: a private authority and one certificate per role.

use crate::args::CertsArguments;
use crate::error::CliError;
use slackline_common::quic::Authority;
use slackline_common::role::Role;

/// Makes the authority, or uses the one that is there, and issues the certificates.
pub(crate) fn certs(arguments: &CertsArguments) -> Result<(), CliError> {
    let dir = &arguments.dir;
    let authority = if dir.join("ca.pem").exists() {
        Authority::load(dir)?
    } else {
        let authority = Authority::create("slackline")?;
        authority.write(dir)?;
        authority
    };
    let roles = if arguments.roles.is_empty() { &Role::ALL[..] } else { &arguments.roles[..] };
    for role in roles {
        authority.issue(*role, &arguments.name, arguments.days)?.write(dir)?;
        println!("{}: {role}, valid {} days", dir.join(role.as_str()).display(), arguments.days);
    }
    println!(
        "copy ca.pem and one role's .pem and .key to each machine; keep {} here",
        dir.join("ca.key").display()
    );
    Ok(())
}
