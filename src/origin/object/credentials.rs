//! The cloud service from which a store's client requests credentials if none are configured, and the error
//! texts for the case that it supplies none.
//!
//! Such a request fails like any other request of the client: with a refused connection, or with a status.
//! Only the address in the error's text shows that the request never reached the store. The clients offer
//! no other sign; the conformance suite checks the texts (`refusals`).

use object_store::aws::AmazonS3ConfigKey;
use object_store::azure::AzureConfigKey;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The metadata service of virtual machines at all three clouds.
const METADATA: &str = "http://169.254.169.254";
/// The service for tasks in Amazon's containers.
const TASKS: &str = "http://169.254.170.2";

/// See the module.
#[derive(Default)]
pub(super) struct CredentialService {
    /// The beginning of the service's addresses, or a part of them that no store's address contains. Empty:
    /// the store needs no credentials.
    address: String,
    /// Describes the configured credentials that the client did not find.
    pub(super) missing: &'static str,
    /// The hint for the user.
    pub(super) advice: String,
}

impl CredentialService {
    /// The service that the S3 client uses with the settings `keys`. `environment` shows credentials that
    /// Amazon's own tools would find and this client does not read.
    pub(super) fn aws(
        keys: &[(AmazonS3ConfigKey, String)],
        environment: &BTreeMap<String, String>,
    ) -> Self {
        let last = |wanted: AmazonS3ConfigKey| {
            let found = keys.iter().rev().find(|(key, _)| *key == wanted);
            found.map(|(_, value)| value.as_str())
        };
        let in_a_task = last(AmazonS3ConfigKey::ContainerCredentialsRelativeUri).is_some();
        let address = if in_a_task {
            TASKS.to_owned()
        } else {
            let endpoint = last(AmazonS3ConfigKey::MetadataEndpoint).unwrap_or(METADATA);
            format!("{endpoint}/latest/")
        };
        Self {
            address,
            missing: "no AWS credentials: AWS_ACCESS_KEY_ID is not set",
            advice: format!(
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for a \
                 public bucket ({})",
                unread_credentials(environment)
            ),
        }
    }

    /// The service that the Google Cloud Storage client uses.
    pub(super) fn google() -> Self {
        Self {
            address: "/computeMetadata/v1/".to_owned(),
            missing: "no Google credentials: neither GOOGLE_SERVICE_ACCOUNT nor \
                      GOOGLE_APPLICATION_CREDENTIALS is set, and gcloud has stored none",
            advice: "set one of them to a file with a key, run gcloud auth application-default login, or \
                     set GOOGLE_SKIP_SIGNATURE=true for a public bucket"
                .to_owned(),
        }
    }

    /// The service that the Azure client uses with the settings `keys`.
    pub(super) fn azure(keys: &[(AzureConfigKey, String)]) -> Self {
        let mut named = keys.iter().rev();
        let named = named.find(|(key, _)| *key == AzureConfigKey::MsiEndpoint);
        let default = format!("{METADATA}/metadata/identity/oauth2/token");
        Self {
            address: named.map_or(default, |(_, endpoint)| endpoint.clone()),
            missing: "no Azure credentials: neither AZURE_STORAGE_ACCOUNT_KEY nor a SAS token nor a \
                      client's secret is set",
            advice:
                "set one of them, or AZURE_SKIP_SIGNATURE=true for a public container (what az \
                     login keeps is read with AZURE_USE_AZURE_CLI=true only)"
                    .to_owned(),
        }
    }

    /// Whether an error with this `text` is about a request to this service.
    pub(super) fn is_requested_in(&self, text: &str) -> bool {
        !self.address.is_empty()
            && text.contains("Error performing ")
            && text.contains(&self.address)
    }
}

/// Describes AWS credentials that exist but are not read, and names them if they are found. A user whose
/// other tools work would otherwise search for the fault elsewhere.
fn unread_credentials(environment: &BTreeMap<String, String>) -> String {
    let set = |name: &str| environment.get(name).filter(|value| !value.is_empty());
    let file = set("AWS_SHARED_CREDENTIALS_FILE").map(PathBuf::from);
    let file = file.or_else(|| Some(Path::new(set("HOME")?).join(".aws/credentials")));
    let file = file.filter(|file| file.exists());
    let profile = set("AWS_PROFILE").map(|profile| format!("AWS_PROFILE={profile} is set"));
    let file = file.map(|file| format!("{} is there", file.display()));
    match (file, profile) {
        (None, None) => "~/.aws/credentials and AWS_PROFILE are not read".to_owned(),
        (Some(one), None) | (None, Some(one)) => format!("{one}, but copperfs does not read it"),
        (Some(file), Some(profile)) => {
            format!("{file} and {profile}, but copperfs reads neither")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_credentials_that_are_not_read_are_named() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().display().to_string();
        let mut environment = BTreeMap::from([("HOME".to_owned(), path.clone())]);
        let says = |environment: &BTreeMap<_, _>| CredentialService::aws(&[], environment).advice;
        assert!(says(&environment).ends_with("(~/.aws/credentials and AWS_PROFILE are not read)"));
        std::fs::create_dir(home.path().join(".aws")).unwrap();
        std::fs::write(home.path().join(".aws/credentials"), "[default]\n").unwrap();
        let wanted = format!("({path}/.aws/credentials is there, but copperfs does not read it)");
        assert!(says(&environment).ends_with(&wanted));
        environment.insert("AWS_PROFILE".to_owned(), "lab".to_owned());
        assert!(says(&environment).contains("AWS_PROFILE=lab is set, but copperfs reads neither"));
        environment.remove("HOME");
        assert!(says(&environment).contains("(AWS_PROFILE=lab is set, but copperfs does not read"));
    }

    #[test]
    fn requests_to_the_store_are_not_taken_for_the_service() {
        let service = CredentialService::aws(&[], &BTreeMap::new());
        for (text, expected) in [
            (
                "Error performing PUT http://169.254.169.254/latest/api/token in 1s - x",
                true,
            ),
            (
                "Error performing GET https://s3.eu.amazonaws.com/b/latest/a in 1s",
                false,
            ),
            ("http://169.254.169.254/latest/", false),
        ] {
            assert_eq!(service.is_requested_in(text), expected, "{text}");
        }
        let none = CredentialService::default();
        assert!(!none.is_requested_in("Error performing GET http://host/a in 1s"));
    }
}
