"""The page is one small file that loads nothing else."""

import json
import re

import pytest

from keras_transformer.explorer.page import make_page, page_content


def data_of(page):
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*)</script>', page)[1]
    )


def test_page_loads_nothing(view):
    page = make_page(page_content([view]))
    code = re.sub(r'"data":"[^"]*"', "", page)  # base64 has slashes
    code = re.sub(r"^\s*//.*", "", code, flags=re.M)
    assert not re.findall(r"https?:|//[a-z]|@import|url\(", code)
    assert re.findall(r"(?:src|href)=(\S+)", page) == ['"data:,">']
    assert "default-src 'none'" in page


@pytest.mark.parametrize(
    "sentence", ["</script><script>alert(1)</script><!--", "{{script}} {{data}}"]
)
def test_marks_in_a_sentence_stay_text(view, sentence):
    page = make_page(page_content([view._replace(sentence=sentence)]))
    assert data_of(page)["sentences"] == [sentence]
    assert "</script><script>alert(1)" not in page
    assert "async function unpack" in page.rpartition("<script>")[2]
