"""Read a dataset as published: YOLO text, COCO JSON, Pascal VOC XML, DOTA text."""
