from floodmark.producers import *
from floodmark.schemas import *
from floodmark.spark_jobs import *

__version__: str
