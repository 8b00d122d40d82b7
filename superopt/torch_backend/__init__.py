"""The backend "superopt" of torch.compile. torch finds it by the entry point
`torch_dynamo_backends`."""
