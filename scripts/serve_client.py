"""keras-transformer serve_client, without installing the package."""

from from_source import run_script

if __name__ == "__main__":
    run_script(__file__)
