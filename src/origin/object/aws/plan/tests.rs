use super::*;
use std::collections::BTreeMap;

/// Files of a home directory with these contents.
fn files(config: &str, credentials: &str) -> (tempfile::TempDir, Files) {
    let home = tempfile::tempdir().unwrap();
    std::fs::create_dir(home.path().join(".aws")).unwrap();
    std::fs::write(home.path().join(".aws/config"), config).unwrap();
    std::fs::write(home.path().join(".aws/credentials"), credentials).unwrap();
    let variables = BTreeMap::from([("HOME".to_owned(), home.path().display().to_string())]);
    let files = Files::read(&variables, rustix::process::geteuid().as_raw());
    (home, files)
}

fn wish(profile: &str) -> Wish {
    Wish {
        profile: Some((profile.to_owned(), "AWS_PROFILE")),
        ..Wish::default()
    }
}

fn plan(profile: &str, config: &str, credentials: &str) -> Result<Plan, String> {
    let (_home, files) = files(config, credentials);
    Plan::new(&wish(profile), &files).map_err(|error| error.to_string())
}

/// The base in words.
fn base(plan: &Plan) -> String {
    match &plan.base {
        Base::Keys(keys) => format!("keys {} {:?}", keys.key_id, keys.token),
        Base::Command { command, .. } => format!("command {command}"),
        Base::WebIdentity { token, role } => format!("token {} {}", token.display(), role.arn),
        Base::SingleSignOn(session) => format!("sso {} {}", session.cache_key, session.region),
        Base::Service { looked } => format!("service {looked}"),
    }
}

const SSO: &str = "sso_account_id=1\nsso_role_name=r\n";

#[test]
fn the_order_within_a_profile() {
    let keys = "aws_access_key_id=A\naws_secret_access_key=S\n";
    let command = "credential_process=run me\n";
    let session = format!(
        "[profile p]\nsso_session=my\n{SSO}{keys}[sso-session my]\nsso_region=eu\nsso_start_url=u\n"
    );
    for (config, credentials, expected) in [
        (
            format!("[profile p]\n{command}"),
            format!("[p]\n{keys}"),
            "keys A None",
        ),
        (
            format!("[profile p]\n{command}{keys}"),
            String::new(),
            "command run me",
        ),
        (
            format!("[profile p]\n{keys}aws_session_token=T\n"),
            String::new(),
            "keys A Some(\"T\")",
        ),
        (session, format!("[p]\n{keys}"), "sso my eu"),
        (
            format!("[profile p]\nsso_start_url=u\nsso_region=x\n{SSO}"),
            String::new(),
            "sso u x",
        ),
        (
            "[profile p]\nrole_arn=arn\nweb_identity_token_file=/t\nsource_profile=q\n".into(),
            format!("[p]\n{keys}"),
            "token /t arn",
        ),
    ] {
        let plan = plan("p", &config, &credentials).unwrap();
        assert_eq!(base(&plan), expected, "{config}{credentials}");
        assert!(plan.roles.is_empty());
    }
}

#[test]
fn the_environments_web_identity_is_before_the_profile() {
    let (_home, files) = files("", "[p]\naws_access_key_id=A\naws_secret_access_key=S\n");
    let role = Role::default();
    let wish = Wish {
        web_identity: Some(("/t".into(), role)),
        ..wish("p")
    };
    let plan = Plan::new(&wish, &files).unwrap();
    assert_eq!(base(&plan), "token /t ");
}

#[test]
fn roles_are_assumed_from_the_innermost_profile_on() {
    let config = "[profile outer]\nrole_arn=two\nsource_profile=inner\nexternal_id=x\n\
                  [profile inner]\nrole_arn=one\nsource_profile=keys\nregion=eu\n\
                  [profile self]\nrole_arn=own\nsource_profile=self\naws_access_key_id=B\naws_secret_access_key=S\n\
                  [profile machine]\nrole_arn=m\ncredential_source=Ec2InstanceMetadata\n";
    let keys = "[keys]\naws_access_key_id=A\naws_secret_access_key=S\n";
    let outer = plan("outer", config, keys).unwrap();
    assert_eq!(base(&outer), "keys A None");
    let arns: Vec<&str> = outer.roles.iter().map(|role| role.arn.as_str()).collect();
    assert_eq!(arns, ["one", "two"]);
    assert_eq!(outer.roles[0].region.as_deref(), Some("eu"));
    assert_eq!(outer.roles[1].external_id.as_deref(), Some("x"));
    let own = plan("self", config, keys).unwrap();
    assert_eq!((base(&own), own.roles.len()), ("keys B None".into(), 1));
    let machine = plan("machine", config, keys).unwrap();
    assert!(base(&machine).starts_with("service ") && machine.roles.len() == 1);
}

#[test]
fn profiles_that_cannot_be_used_say_why() {
    for (config, words) in [
        ("[profile prod]\n", "which AWS_PROFILE names"),
        ("[profile prod]\n", "has no profile p"),
        ("[profile pp]\n", "did you mean pp?"),
        ("[profile p]\nrole_arn=a\n", "neither a source_profile nor"),
        (
            "[profile p]\nrole_arn=a\nsource_profile=q\n",
            "there is no profile \"q\", which source_profile",
        ),
        (
            "[profile p]\nrole_arn=a\nsource_profile=p\n",
            "leads to itself",
        ),
        (
            "[profile p]\nrole_arn=a\nsource_profile=p\nmfa_serial=m\n",
            "code of a device",
        ),
        (
            "[profile p]\nrole_arn=a\ncredential_source=Environment\n",
            "AWS_ACCESS_KEY_ID is not set",
        ),
        (
            "[profile p]\nrole_arn=a\ncredential_source=EcsContainer\n",
            "no such container",
        ),
        (
            "[profile p]\naws_access_key_id=A\n",
            "no aws_secret_access_key",
        ),
        (
            "[profile p]\nsso_session=s\nsso_account_id=1\nsso_role_name=r\n",
            "sso_session s is not in",
        ),
        (
            "[profile p]\nsso_account_id=1\nsso_role_name=r\n",
            "needs an sso_session",
        ),
    ] {
        let error = plan("p", config, "").err().expect(config);
        assert!(error.contains(words), "{config}: {error}");
    }
}

/// A profile that only chooses a region leaves the credentials to the machine.
#[test]
fn a_profile_without_credentials_leaves_them_to_the_service() {
    let text = base(&plan("p", "[profile p]\nregion=eu\n", "[x]\n").unwrap());
    assert!(
        text.starts_with("service ") && text.contains("/.aws/credentials has no profile p"),
        "{text}"
    );
    assert!(text.contains("the profile p of "), "{text}");
    let (_home, files) = files("", "");
    let plan = Plan::new(&Wish::default(), &files).unwrap();
    assert!(base(&plan).contains("has no profile default"));
}

/// They would be sent in headers.
#[test]
fn keys_with_other_characters_are_refused() {
    let credentials = "[p]\naws_access_key_id=A B\naws_secret_access_key=S\n";
    let error = plan("p", "", credentials).err().unwrap();
    assert!(error.contains("characters"), "{error}");
    assert!(credential("A", "S", Some("ü")).is_none() && credential("A", "S/+=", None).is_some());
}
