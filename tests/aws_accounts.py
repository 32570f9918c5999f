"""Fills a moto server for tests: a bucket, a user and a role that may read it. Prints the user's keys and the role.

aws_accounts.py ENDPOINT BUCKET KEY CONTENT

From then on the server accepts only requests that are signed with keys that it has issued.
"""
import json, sys
import boto3
endpoint, bucket, key, content = sys.argv[1:]
known = dict(
    endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id="setup", aws_secret_access_key="setup"
)
s3, iam = boto3.client("s3", **known), boto3.client("iam", **known)
s3.create_bucket(Bucket=bucket)
s3.put_object(Bucket=bucket, Key=key, Body=content.encode())
def policy(**parts):
    return json.dumps({"Version": "2012-10-17", "Statement": [{"Effect": "Allow", **parts}]})
reading = policy(Action=["s3:Get*", "s3:List*"], Resource="*")
assuming = policy(Action="sts:AssumeRole", Resource="*")
trust = policy(Principal={"AWS": "*"}, Action=["sts:AssumeRole", "sts:AssumeRoleWithWebIdentity"])
iam.create_user(UserName="reader")
# The user may read nothing: only the role may.
iam.put_user_policy(UserName="reader", PolicyName="assume", PolicyDocument=assuming)
keys = iam.create_access_key(UserName="reader")["AccessKey"]
role = iam.create_role(RoleName="reading", AssumeRolePolicyDocument=trust)["Role"]["Arn"]
iam.put_role_policy(RoleName="reading", PolicyName="read", PolicyDocument=reading)
print(keys["AccessKeyId"], keys["SecretAccessKey"], role)
